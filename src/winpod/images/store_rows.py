"""Images read from the store's rows: by host build and handler, by a name or the start of an id."""

from __future__ import annotations

from winpod.images.references import parse_reference
from winpod.images.store_transactions import Transactions
from winpod.images.stored import Key, StoredImage, StoredLayer
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import Handlers

_SHORT_ID = 4


class Rows:
    """`host` is the build of the node that asks, None for the store as a whole."""

    def __init__(self, database: Transactions, host: str | None, handlers: Handlers) -> None:
        self._database = database
        self._host = host
        self._handlers = handlers

    def canonical(self, handler: str | None) -> str | None:
        return None if handler is None else self._handlers.get(handler).name

    def keys(self, handler: str | None, *, everywhere: bool = False) -> list[Key]:
        host = None if everywhere else self._host
        rows = self._database.execute("SELECT host, handler, id FROM images")
        return [
            (row["host"], row["handler"], row["id"])
            for row in rows
            if host in (None, row["host"]) and handler in (None, row["handler"])
        ]

    def matching(self, text: str, handler: str | None, *, everywhere: bool = False) -> list[Key]:
        """The images that a name or an id means: by id, by name, or by the beginning of an id."""
        keys = self.keys(handler, everywhere=everywhere)
        plain = text.removeprefix("sha256:")
        if _is_hexadecimal(plain) and len(plain) == 64:
            return [key for key in keys if key[2] == f"sha256:{plain}"]
        named = self._named(text) if plain == text else set()
        if found := [key for key in keys if key in named]:
            return found
        if not _is_hexadecimal(plain) or len(plain) < _SHORT_ID:
            return []
        found = [key for key in keys if key[2].startswith(f"sha256:{plain}")]
        if len({key[2] for key in found}) > 1:
            raise InvalidInput(f'"{text}" is the beginning of several image ids.', "Write more.")
        return found

    def _named(self, text: str) -> set[Key]:
        reference = parse_reference(text)
        repository = f"{reference.registry}/{reference.repository}"
        if not reference.digest:
            rows = self._database.execute(
                "SELECT host, handler, id FROM names WHERE name = ?", (str(reference),)
            )
        else:
            rows = self._database.execute(
                "SELECT host, handler, id FROM names JOIN images USING (host, handler, id) "
                "WHERE name = ? OR (manifest = ? AND substr(name, 1, ?) IN (?, ?))",
                (
                    f"{repository}@{reference.digest}",
                    reference.digest,
                    len(repository) + 1,
                    f"{repository}@",
                    f"{repository}:",
                ),
            )
        return {(row["host"], row["handler"], row["id"]) for row in rows}

    def image(self, host: str, handler: str, id_: str) -> StoredImage:
        row = self._database.execute(
            "SELECT * FROM images JOIN manifests ON manifest = digest "
            "WHERE host = ? AND handler = ? AND id = ?",
            (host, handler, id_),
        ).fetchone()
        (layers,) = self._database.execute(
            "SELECT coalesce(sum(bytes), 0) FROM layers WHERE diff_id IN "
            "(SELECT diff_id FROM manifest_layers WHERE manifest = ? AND kept)",
            (row["manifest"],),
        ).fetchone()
        names = self._database.column(
            "SELECT name FROM names WHERE host = ? AND handler = ? AND id = ? ORDER BY name",
            (host, handler, id_),
        )
        return StoredImage(
            id=id_,
            handler=handler,
            host=host,
            manifest=row["manifest"],
            tags=tuple(name for name in names if "@" not in name),
            digests=tuple(name for name in names if "@" in name),
            architecture=row["architecture"],
            os_version=row["os_version"],
            size=row["documents"] + layers,
            pinned=bool(row["pinned"]),
            pulled_at=row["pulled_at"],
            layers=self.layers(row["manifest"]),
        )

    def layers(self, manifest: str) -> tuple[StoredLayer, ...]:
        rows = self._database.execute(
            "SELECT digest, diff_id, base, kept FROM manifest_layers WHERE manifest = ? "
            "ORDER BY position",
            (manifest,),
        )
        return tuple(
            StoredLayer(row["digest"], row["diff_id"], bool(row["base"]), bool(row["kept"]))
            for row in rows
        )


def _is_hexadecimal(text: str) -> bool:
    return bool(text) and set(text) <= set("0123456789abcdef")

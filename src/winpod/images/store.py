"""What was pulled: images by (host build, handler, name), their documents, and unpacked layers.

The database says what is wanted, the directories say what is there. Content appears whole, by a
rename, and only after a lease in the database keeps it; it disappears by a rename out of its place,
and only in a transaction that found nothing to want it. So at any moment, and after a process was
killed at any moment, what the database names is there, and the rest is cleared away by the next
`collect`. Transactions that write exclude each other across processes.

A lease that nobody lives to finish keeps its content for a day, so that the next pull of the same
image goes on where the last one ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from winpod.images.errors import BadContent, ImageNotFound, NoSpace, NotPulled, StoreUnusable
from winpod.images.manifests import Descriptor, pointer, verify
from winpod.images.references import parse_reference
from winpod.images.store_lock import FileLock
from winpod.images.store_schema import open_database
from winpod.images.store_size import LayerSize
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError
from winpod.windows.handlers import KNOWN, PROCESS, Handlers

GRACE_SECONDS = 24 * 3600.0
_SHORT_ID = 4

_SHARED, _OWNER = "lock", "owner"

DOCUMENT, LAYER, BLOB = "document", "layer", "blob"

Key = tuple[str, str, str]
"""Host build, handler and id: what an image is kept under."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of an image. What is not kept stands in the manifest and was not pulled."""

    digest: str
    diff_id: str
    base: bool
    kept: bool


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as one handler of one host build has it. Its id is the digest of its config."""

    id: str
    handler: str
    host: str
    manifest: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    architecture: str
    os_version: str
    size: int
    pinned: bool
    pulled_at: float
    layers: tuple[StoredLayer, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """Which manifest a name is to a handler of a host build."""

    names: frozenset[str]
    root: str
    host: str
    handler: str
    manifest: str


@dataclass(frozen=True, slots=True)
class NewImage:
    """What a pull found out, ready to be written down."""

    variant: Variant
    id: str
    architecture: str
    os_version: str
    layers: tuple[StoredLayer, ...]
    documents: frozenset[str]


@dataclass(frozen=True, slots=True)
class FilesystemUsage:
    mountpoint: Path
    bytes: int
    inodes: int
    timestamp: float


@dataclass(frozen=True, slots=True)
class Session:
    """A directory for work in progress, and the locks that say for whom it is there.

    The shared lock is inherited by processes that work in the directory, and keeps it; the owner's
    is not, and keeps the leases.
    """

    directory: Path
    shared: FileLock
    owner: FileLock


@dataclass(frozen=True, slots=True)
class Lease:
    """A promise that content named in it stays, made before the content is looked for."""

    id: str
    directory: Path


class Store:
    """The store at one root, as a node of one host build sees it, or as a whole without one.

    Any number of processes may have it open.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: Build | None = None,
        handlers: Handlers = KNOWN,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self.root = root
        self._handlers = handlers
        self._host = str(host.base) if host else None
        self._grace = grace_seconds
        self._mutex = threading.RLock()
        self._session: Session | None = None
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o711)
            for part in ("content", "layers", "ingest/blobs"):
                (root / part).mkdir(parents=True, exist_ok=True)
            opening = FileLock.take(root / "state.lock")
        except OSError as error:
            raise trouble(root, error) from None
        try:
            self._database = open_database(root / "state.db")
        except sqlite3.Error as error:
            raise _database_trouble(root, error) from None
        finally:
            opening.release()
        self.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._session:
            shutil.rmtree(self._session.directory, ignore_errors=True)
            self._session.owner.release()
            self._session.shared.release()
            self._session = None
        self._database.close()

    # Looking

    def images(self, handler: str | None = None) -> list[StoredImage]:
        """Every image, or those of a handler, in the order of their names."""
        with self._reading():
            found = [self._image(*key) for key in self._keys(self._canonical(handler))]
        return sorted(found, key=lambda i: (i.tags or ("~",), i.digests, i.handler, i.host))

    def find(self, text: str, handler: str = "", host: Build | None = None) -> StoredImage | None:
        """The image that a name or an id means to a handler."""
        with self._reading():
            keys = self._matching(text, self._handlers.get(handler).name)
            if host:
                keys = [key for key in keys if key[0] == str(host.base)]
            return self._image(*keys[0]) if keys else None

    def layers_of(self, image: StoredImage) -> list[Path]:
        """The unpacked layers that were kept, the lowest first."""
        paths = [self.layer_path(layer.diff_id) for layer in image.layers if layer.kept]
        for path in paths:
            if not path.is_dir():
                raise NotPulled(
                    f"The layer {path.name} of {image.id} is missing in {path.parent}.",
                    "Something other than winpod removed it; pull the image again.",
                )
        return paths

    def content(self, digest: str) -> bytes:
        """A stored document, verified."""
        data = self.read_document(pointer(digest))
        if data is None:
            raise ImageNotFound(f"{self.root} has no document {digest}.", "Pull the image again.")
        return data

    def roots(self, text: str) -> list[tuple[str, str]]:
        """Names that an image has for any handler and host, and what each was resolved to."""
        with self._reading():
            keys = set(self._matching(text, None, everywhere=True))
            rows = self._database.execute(
                "SELECT host, handler, id, name, root FROM names "
                "JOIN images USING (host, handler, id) ORDER BY pulled_at DESC"
            )
            found = [(r["name"], r["root"]) for r in rows if (r[0], r[1], r[2]) in keys]
        return list(dict.fromkeys(found))

    def layers_of_manifest(self, digest: str) -> tuple[StoredLayer, ...]:
        """What was found out of a manifest's layers, nothing where it is not in the store."""
        with self._reading():
            return self._layers(digest)

    def unmeasured(self, diff_ids: Iterable[str]) -> list[str]:
        """Layers of which it is not written down what they take of the disk."""
        with self._reading():
            known = set(self._column("SELECT diff_id FROM layers"))
        return [diff_id for diff_id in diff_ids if diff_id not in known]

    def usage(self) -> FilesystemUsage:
        """What images take of the disk, in bytes and in inodes."""
        with self._reading():
            row = self._database.execute(
                "SELECT coalesce(sum(bytes), 0) AS bytes, coalesce(sum(inodes), 0) AS inodes "
                "FROM layers"
            ).fetchone()
        files = [*(self.root / "content").rglob("*"), *self._blobs.iterdir()]
        sizes = [_size_on_disk(path) for path in files]
        return FilesystemUsage(
            self.root,
            row["bytes"] + sum(size or 0 for size in sizes),
            row["inodes"] + sum(size is not None for size in sizes),
            time.time(),
        )

    # Changing what is wanted

    def remove(self, text: str, handler: str | None = None) -> list[StoredImage]:
        """Forget an image: every name of its id, for a handler or for all; gives what was there.

        What is not there is nothing to remove, so of several removals at once none fails.
        """
        with self._writing(durable=True):
            keys = self._matching(text, self._canonical(handler))
            if handler is None:
                ids = {key[2] for key in keys}
                keys = [key for key in self._keys(None) if key[2] in ids]
            removed = [self._image(*key) for key in keys]
            self._database.executemany(
                "DELETE FROM images WHERE host = ? AND handler = ? AND id = ?", keys
            )
        self.collect()
        return removed

    def pin(self, text: str, handler: str | None = None) -> None:
        """Mark an image as one that garbage collectors of nodes leave alone."""
        self._set_pinned(text, handler, True)

    def unpin(self, text: str, handler: str | None = None) -> None:
        self._set_pinned(text, handler, False)

    def _set_pinned(self, text: str, handler: str | None, pinned: bool) -> None:
        with self._writing():
            keys = self._matching(text, self._canonical(handler))
            if not keys:
                raise not_pulled(text, handler)
            self._database.executemany(
                "UPDATE images SET pinned = ? WHERE host = ? AND handler = ? AND id = ?",
                [(pinned, *key) for key in keys],
            )

    def hold(self, owner: str, image: StoredImage) -> None:
        """Keep an image's content for an owner, such as a container, even if it is removed."""
        with self._writing():
            known = "SELECT 1 FROM manifests WHERE digest = ?"
            if not self._database.execute(known, (image.manifest,)).fetchone():
                raise not_pulled(image.id, image.handler)
            self._database.execute(
                "INSERT OR IGNORE INTO holds (owner, manifest) VALUES (?, ?)",
                (owner, image.manifest),
            )

    def release(self, owner: str) -> None:
        """End what an owner holds; what only it wanted is cleared away."""
        only_its = (
            "SELECT 1 FROM holds WHERE owner = :owner AND manifest NOT IN (SELECT manifest FROM "
            "images UNION SELECT manifest FROM holds WHERE owner <> :owner)"
        )
        forget = "DELETE FROM holds WHERE owner = ?"
        with self._writing():
            is_last = self._database.execute(only_its, {"owner": owner}).fetchone()
            if not is_last:
                self._database.execute(forget, (owner,))
        if is_last:
            with self._writing(durable=True):
                self._database.execute(forget, (owner,))
            self.collect()

    # Adding

    @contextmanager
    def lease(self, purpose: str) -> Iterator[Lease]:
        """Keep what is named in it until the image is committed.

        After a failure that may pass, and when the caller goes away, what is whole or can be
        resumed stays for the next pull of the same purpose; after any other, nothing does.
        """
        lease = self._begin(purpose)
        try:
            yield lease
        except WinpodError as error:
            self._end(lease, abandon=isinstance(error, Unavailable))
            raise
        except BaseException:
            self._end(lease, abandon=True)
            raise
        self._end(lease, abandon=False)

    def keep(self, lease: Lease, kind: str, *digests: str) -> None:
        with self._writing():
            self._database.executemany(
                "INSERT OR IGNORE INTO leased (lease, kind, digest) VALUES (?, ?, ?)",
                [(lease.id, kind, digest) for digest in digests],
            )

    def read_document(self, descriptor: Descriptor) -> bytes | None:
        """A document, or None where it is missing or damaged."""
        path = self._document(descriptor.digest)
        try:
            data = path.read_bytes()
            verify(data, descriptor, str(path))
        except (OSError, BadContent):
            return None
        return data

    def write_document(self, lease: Lease, digest: str, data: bytes) -> None:
        path = self._document(digest)
        temporary = lease.directory / uuid4().hex
        try:
            path.parent.mkdir(exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise trouble(self.root, error) from None

    def layer_path(self, diff_id: str) -> Path:
        return self.root / "layers" / diff_id.partition(":")[2]

    def blob_path(self, digest: str) -> Path:
        """Where a download is kept until it is unpacked."""
        return self._blobs / digest.replace(":", "-")

    def blob_lock(self, digest: str) -> Path:
        """The lock of whoever writes there."""
        path = self.blob_path(digest)
        return path.with_name(f"{path.name}.lock")

    def sync(self) -> None:
        """Bring all that was written to the disk itself, so that a loss of power leaves it."""
        file = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(file) != 0:
                number = ctypes.get_errno()
                raise trouble(self.root, OSError(number, os.strerror(number)))
        finally:
            os.close(file)

    def adopt_layer(self, unpacked: Path, diff_id: str) -> None:
        """Move an unpacked layer, which a lease names, into its place."""
        try:
            unpacked.rename(self.layer_path(diff_id))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise trouble(self.root, error) from None
            shutil.rmtree(unpacked)  # another blob of the same layer was faster

    def commit(self, lease: Lease, image: NewImage, sizes: dict[str, LayerSize]) -> StoredImage:
        """Write an image down, in the place of what its name was, and end the lease's purpose."""
        with self._writing(durable=True):
            self._refuse_incomplete(image)
            self._write_manifest(image, sizes)
            self._database.executemany(
                "INSERT OR IGNORE INTO documents (root, digest) VALUES (?, ?)",
                [(image.variant.root, digest) for digest in image.documents],
            )
            self._forget_unfinished(lease)
            return self._write_variant(image.variant)

    def add_variant(self, variant: Variant) -> StoredImage | None:
        """Give a handler an image that another one has already, or None where none has it."""
        with self._writing():
            whole = self._column(
                "SELECT digest FROM manifests JOIN names ON root = ? WHERE digest = ?",
                (variant.root, variant.manifest),
            )
            return self._write_variant(variant) if whole else None

    def _write_variant(self, variant: Variant) -> StoredImage:
        row = self._database.execute(
            "SELECT config FROM manifests WHERE digest = ?", (variant.manifest,)
        ).fetchone()
        key = (variant.host, variant.handler, str(row["config"]))
        self._database.execute(
            "INSERT INTO images (host, handler, id, manifest, pulled_at) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
            "SET manifest = excluded.manifest, pulled_at = excluded.pulled_at",
            (*key, variant.manifest, time.time()),
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO names (host, handler, id, name, root) VALUES (?, ?, ?, ?, ?)",
            [(*key, name, variant.root) for name in variant.names],
        )
        return self._image(*key)

    def _refuse_incomplete(self, image: NewImage) -> None:
        missing = [
            *(d for d in image.documents if not self._document(d).exists()),
            *(
                layer.diff_id
                for layer in image.layers
                if layer.kept and not self.layer_path(layer.diff_id).is_dir()
            ),
        ]
        if missing:
            raise NotPulled(
                f"{missing[0]} of {image.id} disappeared from {self.root} during the pull.",
                "Something other than winpod removed it; pull the image again.",
            )

    def _write_manifest(self, image: NewImage, sizes: dict[str, LayerSize]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO layers (diff_id, bytes, inodes) VALUES (?, ?, ?)",
            [(diff_id, size.bytes, size.inodes) for diff_id, size in sizes.items()],
        )
        manifest = image.variant.manifest
        documents = sum(self._document(d).stat().st_size for d in (manifest, image.id))
        self._database.execute(
            "INSERT INTO manifests (digest, config, architecture, os_version, documents) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (manifest, image.id, image.architecture, image.os_version, documents),
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO manifest_layers "
            "(manifest, position, digest, diff_id, base, kept) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    image.variant.manifest,
                    position,
                    layer.digest,
                    layer.diff_id,
                    layer.base,
                    layer.kept,
                )
                for position, layer in enumerate(image.layers)
            ],
        )

    def _forget_unfinished(self, lease: Lease) -> None:
        """End every lease for the same purpose that no living process works under."""
        live = self._live_sessions()
        rows = self._database.execute(
            "SELECT id, session FROM leases WHERE purpose = "
            "(SELECT purpose FROM leases WHERE id = ?)",
            (lease.id,),
        ).fetchall()
        done = [row["id"] for row in rows if row["session"] not in live or row["id"] == lease.id]
        self._database.executemany("DELETE FROM leases WHERE id = ?", [(one,) for one in done])

    def session(self) -> Session:
        """This process' place for what is in progress."""
        with self._writing():
            return self._open_session()

    def _open_session(self) -> Session:
        if self._session is None:
            directory = self._ingest / f"session-{uuid4().hex}"
            directory.mkdir(mode=0o700)
            self._session = Session(
                directory, FileLock.take(directory / _SHARED), FileLock.take(directory / _OWNER)
            )
        return self._session

    def _begin(self, purpose: str) -> Lease:
        with self._writing():
            directory = self._open_session().directory
            lease = Lease(uuid4().hex, directory)
            self._database.execute(
                "INSERT INTO leases (id, purpose, session, created_at) VALUES (?, ?, ?, ?)",
                (lease.id, purpose, directory.name, time.time()),
            )
        return lease

    def _end(self, lease: Lease, *, abandon: bool) -> None:
        with self._writing():
            if abandon:
                self._database.execute("UPDATE leases SET session = '' WHERE id = ?", (lease.id,))
            else:
                self._database.execute("DELETE FROM leases WHERE id = ?", (lease.id,))
        self.collect()

    # Clearing away

    def collect(self) -> None:
        """Clear away what nothing wants and no living process works on."""
        with self._writing():
            doomed = [*self._ingest.glob("trash-*"), *self._dead_sessions()]
            self._forget_unwanted()
            doomed += self._unwanted_files()
            trash = [out for path in doomed if (out := self._discard(path))]
        for path in trash:
            shutil.rmtree(path, ignore_errors=True)

    def _dead_sessions(self) -> list[Path]:
        used = self._sessions_with(_SHARED)
        return [path for path in self._ingest.glob("session-*") if path.name not in used]

    def _live_sessions(self) -> set[str]:
        return self._sessions_with(_OWNER)

    def _sessions_with(self, lock: str) -> set[str]:
        """Sessions in which a living process has a lock."""
        own = {self._session.directory.name} if self._session else set()
        others = {path.name for path in self._ingest.glob("session-*")} - own
        return own | {name for name in others if _is_locked(self._ingest / name / lock)}

    def _forget_unwanted(self) -> None:
        oldest = time.time() - self._grace
        live = self._live_sessions()
        rows = self._database.execute(
            "SELECT id, session FROM leases WHERE created_at < ?", (oldest,)
        ).fetchall()
        self._database.executemany(
            "DELETE FROM leases WHERE id = ?",
            [(row["id"],) for row in rows if row["session"] not in live],
        )
        for statement in (
            "DELETE FROM documents WHERE root NOT IN (SELECT root FROM names)",
            "DELETE FROM images WHERE NOT EXISTS (SELECT 1 FROM names WHERE "
            "(names.host, names.handler, names.id) = (images.host, images.handler, images.id))",
            "DELETE FROM manifests WHERE digest NOT IN "
            "(SELECT manifest FROM images UNION SELECT manifest FROM holds)",
            "DELETE FROM layers WHERE diff_id NOT IN "
            "(SELECT diff_id FROM manifest_layers WHERE kept)",
        ):
            self._database.execute(statement)

    def _unwanted_files(self) -> list[Path]:
        documents = self._column(
            "SELECT digest FROM documents UNION SELECT digest FROM manifests "
            "UNION SELECT config FROM manifests "
            "UNION SELECT digest FROM leased WHERE kind = 'document'"
        )
        layers = self._column(
            "SELECT diff_id FROM manifest_layers WHERE kept "
            "UNION SELECT digest FROM leased WHERE kind = 'layer'"
        )
        blobs = self._column("SELECT digest FROM leased WHERE kind = 'blob'")
        kept = {
            *map(self._document, documents),
            *map(self.layer_path, layers),
            *map(self.blob_path, blobs),
            *map(self.blob_lock, blobs),
        }
        found = [
            *(self.root / "content").glob("*/*"),
            *(self.root / "layers").iterdir(),
            *self._blobs.iterdir(),
        ]
        return [path for path in found if path not in kept]

    def _discard(self, path: Path) -> Path | None:
        """Take a path out of its place at once; removing what a directory holds comes later."""
        if path.name.startswith("trash-"):
            return path
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return None
        return path.rename(self._ingest / f"trash-{uuid4().hex}")

    # Reading rows

    def _canonical(self, handler: str | None) -> str | None:
        return None if handler is None else self._handlers.get(handler).name

    def _keys(self, handler: str | None, *, everywhere: bool = False) -> list[Key]:
        host = None if everywhere else self._host
        rows = self._database.execute("SELECT host, handler, id FROM images")
        return [
            (row["host"], row["handler"], row["id"])
            for row in rows
            if host in (None, row["host"]) and handler in (None, row["handler"])
        ]

    def _matching(self, text: str, handler: str | None, *, everywhere: bool = False) -> list[Key]:
        """The images that a name or an id means: by id, by name, or by the beginning of an id."""
        keys = self._keys(handler, everywhere=everywhere)
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

    def _image(self, host: str, handler: str, id_: str) -> StoredImage:
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
        names = self._column(
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
            layers=self._layers(row["manifest"]),
        )

    def _layers(self, manifest: str) -> tuple[StoredLayer, ...]:
        rows = self._database.execute(
            "SELECT digest, diff_id, base, kept FROM manifest_layers WHERE manifest = ? "
            "ORDER BY position",
            (manifest,),
        )
        return tuple(
            StoredLayer(row["digest"], row["diff_id"], bool(row["base"]), bool(row["kept"]))
            for row in rows
        )

    def _column(self, statement: str, parameters: Iterable[str] = ()) -> list[str]:
        return [row[0] for row in self._database.execute(statement, tuple(parameters))]

    # Places and transactions

    @property
    def _ingest(self) -> Path:
        return self.root / "ingest"

    @property
    def _blobs(self) -> Path:
        return self.root / "ingest" / "blobs"

    def _document(self, digest: str) -> Path:
        return self.root / "content" / digest.replace(":", "/")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def _writing(self, *, durable: bool = False) -> Iterator[None]:
        """A transaction that excludes others, and what it must be before the disk is told more.

        A loss of power may take back the last transactions that are not durable. That a lease is
        forgotten does no harm, for its content is as likely lost; that a removal is, would.
        """
        with self._transaction("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL"):
            yield

    @contextmanager
    def _transaction(self, begin: str, synchronous: str = "NORMAL") -> Iterator[None]:
        with self._mutex:
            try:
                self._database.execute(f"PRAGMA synchronous = {synchronous}")
                self._database.execute(begin)
                try:
                    yield
                    self._database.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self._database.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise _database_trouble(self.root, error) from None
            except OSError as error:
                raise trouble(self.root, error) from None


def not_pulled(text: str, handler: str | None) -> NotPulled:
    name = handler or PROCESS.name
    return NotPulled(
        f'failed to resolve image "{text}": not found for the handler {name}.',
        f"Pull it: winpod pull --handler {name} {text}",
    )


def disk_full(root: Path) -> NoSpace:
    return NoSpace(
        f"No space is left on the disk of {root}.",
        "Remove images (winpod rmi), or give it a larger disk.",
    )


def trouble(root: Path, error: OSError) -> WinpodError:
    """What the disk refused, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(root)
    return StoreUnusable(
        f"The store {root} cannot be used: {error.strerror}"
        + (f" ({error.filename})." if error.filename else "."),
        "Run as the user that owns it, or give another root.",
    )


def _database_trouble(root: Path, error: sqlite3.Error) -> WinpodError:
    kind = getattr(error, "sqlite_errorname", "")
    if kind == "SQLITE_FULL" or (kind.startswith("SQLITE_IOERR") and _is_full(root)):
        return disk_full(root)
    damaged = kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
    return StoreUnusable(
        f"The store's {root / 'state.db'} cannot be used: {error}.",
        f"It is damaged: remove {root} and pull again." if damaged else "",
    )


def _is_full(root: Path) -> bool:
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize < 1 << 20


def _is_locked(path: Path) -> bool:
    """Whether a living process has it."""
    try:
        lock = FileLock.try_take(path)
    except FileNotFoundError:
        return False
    if lock:
        lock.release()
    return lock is None


def _size_on_disk(path: Path) -> int | None:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return None


def _is_hexadecimal(text: str) -> bool:
    return bool(text) and set(text) <= set("0123456789abcdef")

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

import ctypes
import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from winpod.images.errors import BadContent, ImageNotFound, NotPulled
from winpod.images.manifests import Descriptor, pointer, verify
from winpod.images.store_places import Places
from winpod.images.store_rows import Rows
from winpod.images.store_sessions import Session, Sessions
from winpod.images.store_size import LayerSize
from winpod.images.store_transactions import Transactions
from winpod.images.store_trouble import not_pulled, trouble
from winpod.images.store_unwanted import forget_unwanted, take_out, unwanted_files
from winpod.images.stored import (
    FilesystemUsage,
    Lease,
    NewImage,
    StoredImage,
    StoredLayer,
    Variant,
)
from winpod.windows.builds import Build
from winpod.windows.errors import Unavailable, WinpodError
from winpod.windows.handlers import KNOWN, Handlers

GRACE_SECONDS = 24 * 3600.0
DOCUMENT, LAYER, BLOB = "document", "layer", "blob"


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
        self._grace = grace_seconds
        self._places = Places(root)
        try:
            self._places.make()
        except OSError as error:
            raise trouble(root, error) from None
        self._database = Transactions(root)
        self._rows = Rows(self._database, str(host.base) if host else None, handlers)
        self._sessions = Sessions(self._places.ingest)
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
        self._sessions.close()
        self._database.close()

    # Looking

    def images(self, handler: str | None = None) -> list[StoredImage]:
        """Every image, or those of a handler, in the order of their names."""
        with self._database.reading():
            found = [
                self._rows.image(*key) for key in self._rows.keys(self._rows.canonical(handler))
            ]
        return sorted(found, key=lambda i: (i.tags or ("~",), i.digests, i.handler, i.host))

    def find(self, text: str, handler: str = "", host: Build | None = None) -> StoredImage | None:
        """The image that a name or an id means to a handler."""
        with self._database.reading():
            keys = self._rows.matching(text, self._handlers.get(handler).name)
            if host:
                keys = [key for key in keys if key[0] == str(host.base)]
            return self._rows.image(*keys[0]) if keys else None

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
        with self._database.reading():
            keys = set(self._rows.matching(text, None, everywhere=True))
            rows = self._database.execute(
                "SELECT host, handler, id, name, root FROM names "
                "JOIN images USING (host, handler, id) ORDER BY pulled_at DESC"
            )
            found = [(r["name"], r["root"]) for r in rows if (r[0], r[1], r[2]) in keys]
        return list(dict.fromkeys(found))

    def layers_of_manifest(self, digest: str) -> tuple[StoredLayer, ...]:
        """What was found out of a manifest's layers, nothing where it is not in the store."""
        with self._database.reading():
            return self._rows.layers(digest)

    def unmeasured(self, diff_ids: Iterable[str]) -> list[str]:
        """Layers of which it is not written down what they take of the disk."""
        with self._database.reading():
            known = set(self._database.column("SELECT diff_id FROM layers"))
        return [diff_id for diff_id in diff_ids if diff_id not in known]

    def usage(self) -> FilesystemUsage:
        """What images take of the disk, in bytes and in inodes."""
        with self._database.reading():
            row = self._database.execute(
                "SELECT coalesce(sum(bytes), 0) AS bytes, coalesce(sum(inodes), 0) AS inodes "
                "FROM layers"
            ).fetchone()
        files = [*self._places.content.rglob("*"), *self._places.blobs.iterdir()]
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
        with self._database.writing(durable=True):
            keys = self._rows.matching(text, self._rows.canonical(handler))
            if handler is None:
                ids = {key[2] for key in keys}
                keys = [key for key in self._rows.keys(None) if key[2] in ids]
            removed = [self._rows.image(*key) for key in keys]
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
        with self._database.writing():
            keys = self._rows.matching(text, self._rows.canonical(handler))
            if not keys:
                raise not_pulled(text, handler)
            self._database.executemany(
                "UPDATE images SET pinned = ? WHERE host = ? AND handler = ? AND id = ?",
                [(pinned, *key) for key in keys],
            )

    def hold(self, owner: str, image: StoredImage) -> None:
        """Keep an image's content for an owner, such as a container, even if it is removed."""
        with self._database.writing():
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
        with self._database.writing():
            is_last = self._database.execute(only_its, {"owner": owner}).fetchone()
            if not is_last:
                self._database.execute(forget, (owner,))
        if is_last:
            with self._database.writing(durable=True):
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
        with self._database.writing():
            self._database.executemany(
                "INSERT OR IGNORE INTO leased (lease, kind, digest) VALUES (?, ?, ?)",
                [(lease.id, kind, digest) for digest in digests],
            )

    def read_document(self, descriptor: Descriptor) -> bytes | None:
        """A document, or None where it is missing or damaged."""
        path = self._places.document(descriptor.digest)
        try:
            data = path.read_bytes()
            verify(data, descriptor, str(path))
        except (OSError, BadContent):
            return None
        return data

    def write_document(self, lease: Lease, digest: str, data: bytes) -> None:
        path = self._places.document(digest)
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
        return self._places.layer(diff_id)

    def blob_path(self, digest: str) -> Path:
        """Where a download is kept until it is unpacked."""
        return self._places.blob(digest)

    def blob_lock(self, digest: str) -> Path:
        """The lock of whoever writes there."""
        return self._places.blob_lock(digest)

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
        with self._database.writing(durable=True):
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
        with self._database.writing():
            whole = self._database.column(
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
        return self._rows.image(*key)

    def _refuse_incomplete(self, image: NewImage) -> None:
        missing = [
            *(d for d in image.documents if not self._places.document(d).exists()),
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
        documents = sum(self._places.document(d).stat().st_size for d in (manifest, image.id))
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
        live = self._sessions.living()
        rows = self._database.execute(
            "SELECT id, session FROM leases WHERE purpose = "
            "(SELECT purpose FROM leases WHERE id = ?)",
            (lease.id,),
        ).fetchall()
        done = [row["id"] for row in rows if row["session"] not in live or row["id"] == lease.id]
        self._database.executemany("DELETE FROM leases WHERE id = ?", [(one,) for one in done])

    def session(self) -> Session:
        """This process' place for what is in progress."""
        with self._database.writing():
            return self._sessions.own()

    def _begin(self, purpose: str) -> Lease:
        with self._database.writing():
            directory = self._sessions.own().directory
            lease = Lease(uuid4().hex, directory)
            self._database.execute(
                "INSERT INTO leases (id, purpose, session, created_at) VALUES (?, ?, ?, ?)",
                (lease.id, purpose, directory.name, time.time()),
            )
        return lease

    def _end(self, lease: Lease, *, abandon: bool) -> None:
        with self._database.writing():
            if abandon:
                self._database.execute("UPDATE leases SET session = '' WHERE id = ?", (lease.id,))
            else:
                self._database.execute("DELETE FROM leases WHERE id = ?", (lease.id,))
        self.collect()

    # Clearing away

    def collect(self) -> None:
        """Clear away what nothing wants and no living process works on."""
        with self._database.writing():
            doomed = [*self._places.ingest.glob("trash-*"), *self._sessions.dead()]
            forget_unwanted(self._database, time.time() - self._grace, self._sessions.living())
            doomed += unwanted_files(self._database, self._places)
            trash = [out for path in doomed if (out := take_out(path, self._places.ingest))]
        for path in trash:
            shutil.rmtree(path, ignore_errors=True)


def _size_on_disk(path: Path) -> int | None:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return None

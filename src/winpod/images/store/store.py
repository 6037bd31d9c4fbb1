"""Image store: pulled images by (host build, handler, name), their documents and unpacked layers.

The database holds the references, the directories the content. Content appears by a rename, and
only after a lease in the database protects it; it is removed by a rename, and only in a transaction
that found it unreferenced. So even after a kill at any point, everything the database references
exists, and the next `collect_garbage` removes the rest.

A lease of a dead process protects its content for a day, so that the next pull of the same image
can resume.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from winpod.errors import Unavailable, WinpodError
from winpod.files import TreeUsage, remove_tree, sync_filesystem
from winpod.images.errors import (
    CorruptContent,
    ImageNotFound,
    ImageNotPulled,
    not_pulled_error,
    store_error,
)
from winpod.images.manifests import Descriptor, descriptor_of_digest, verify_content
from winpod.images.store.database import ImageQueries, StoreDatabase
from winpod.images.store.gc import (
    StorePaths,
    WorkDirectories,
    WorkDirectory,
    delete_unreferenced,
    rename_aside,
    unreferenced_files,
)
from winpod.images.store.records import (
    FilesystemUsage,
    ImageVariant,
    Lease,
    NewImage,
    StoredImage,
    StoredLayer,
)
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers

GRACE_SECONDS = 24 * 3600.0
DOCUMENT, LAYER, BLOB = "document", "layer", "blob"


class Store:
    """The image store in a root directory, for nodes of one host build or, without one, for all.

    Several processes may have it open at the same time.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: Build | None = None,
        handlers: Handlers = BUILTIN_HANDLERS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self.root = root
        self._handlers = handlers
        self._grace = grace_seconds
        self._paths = StorePaths(root)
        try:
            self._paths.create()
        except OSError as error:
            raise store_error(root, error) from None
        self._database = StoreDatabase(root)
        self._rows = ImageQueries(self._database, str(host.base) if host else None, handlers)
        self._sessions = WorkDirectories(self._paths.ingest)
        self.collect_garbage()

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

    def images(self, handler: str | None = None) -> list[StoredImage]:
        """Return all images, or those of a handler, sorted by name."""
        with self._database.read_transaction():
            images = [
                self._rows.image(*key) for key in self._rows.keys(self._rows.canonical(handler))
            ]
        return sorted(images, key=lambda i: (i.tags or ("~",), i.digests, i.handler, i.host))

    def find(self, text: str, handler: str = "", host: Build | None = None) -> StoredImage | None:
        """Return the image with a name, id or id prefix for a handler."""
        with self._database.read_transaction():
            keys = self._rows.find_matching(text, self._handlers.get(handler).name)
            if host:
                keys = [key for key in keys if key[0] == str(host.base)]
            return self._rows.image(*keys[0]) if keys else None

    def layers_of(self, image: StoredImage) -> list[Path]:
        """Return the directories of the kept layers, lowest first."""
        paths = [self.layer_path(layer.diff_id) for layer in image.layers if layer.kept]
        for path in paths:
            if not path.is_dir():
                raise ImageNotPulled(
                    f"The layer {path.name} of {image.id} is missing in {path.parent}.",
                    "Something other than winpod removed it; pull the image again.",
                )
        return paths

    def content(self, digest: str) -> bytes:
        """Return a stored document after verifying its digest."""
        data = self.read_document(descriptor_of_digest(digest))
        if data is None:
            raise ImageNotFound(f"{self.root} has no document {digest}.", "Pull the image again.")
        return data

    def resolved_names(self, text: str) -> list[tuple[str, str]]:
        """Return an image's names for any handler and host, with the digest each resolved to."""
        with self._database.read_transaction():
            keys = set(self._rows.find_matching(text, None, everywhere=True))
            rows = self._database.execute(
                "SELECT host, handler, id, name, root FROM names "
                "JOIN images USING (host, handler, id) ORDER BY pulled_at DESC"
            )
            names = [(r["name"], r["root"]) for r in rows if (r[0], r[1], r[2]) in keys]
        return list(dict.fromkeys(names))

    def layers_of_manifest(self, digest: str) -> tuple[StoredLayer, ...]:
        """Return the recorded layers of a manifest, empty if it is not in the store."""
        with self._database.read_transaction():
            return self._rows.layers(digest)

    def layers_without_size(self, diff_ids: Iterable[str]) -> list[str]:
        """Return the layers whose disk usage is not recorded."""
        with self._database.read_transaction():
            known = set(self._database.column("SELECT diff_id FROM layers"))
        return [diff_id for diff_id in diff_ids if diff_id not in known]

    def usage(self) -> FilesystemUsage:
        """Return the disk usage of all images in bytes and inodes."""
        with self._database.read_transaction():
            row = self._database.execute(
                "SELECT coalesce(sum(bytes), 0) AS bytes, coalesce(sum(inodes), 0) AS inodes "
                "FROM layers"
            ).fetchone()
        files = [*self._paths.content.rglob("*"), *self._paths.blobs.iterdir()]
        sizes = [_size_on_disk(path) for path in files]
        return FilesystemUsage(
            self.root,
            row["bytes"] + sum(size or 0 for size in sizes),
            row["inodes"] + sum(size is not None for size in sizes),
            time.time(),
        )

    def remove(self, text: str, handler: str | None = None) -> list[StoredImage]:
        """Remove an image with all its names, for one handler or all, and return what was removed.

        Removing a missing image is not an error, so concurrent removals all succeed.
        """
        with self._database.write_transaction(durable=True):
            keys = self._rows.find_matching(text, self._rows.canonical(handler))
            if handler is None:
                ids = {key[2] for key in keys}
                keys = [key for key in self._rows.keys(None) if key[2] in ids]
            removed = [self._rows.image(*key) for key in keys]
            self._database.executemany(
                "DELETE FROM images WHERE host = ? AND handler = ? AND id = ?", keys
            )
        self.collect_garbage()
        return removed

    def pin(self, text: str, handler: str | None = None) -> None:
        """Exclude an image from the image garbage collection of nodes."""
        self._set_pinned(text, handler, True)

    def unpin(self, text: str, handler: str | None = None) -> None:
        self._set_pinned(text, handler, False)

    def _set_pinned(self, text: str, handler: str | None, pinned: bool) -> None:
        with self._database.write_transaction():
            keys = self._rows.find_matching(text, self._rows.canonical(handler))
            if not keys:
                raise not_pulled_error(text, handler)
            self._database.executemany(
                "UPDATE images SET pinned = ? WHERE host = ? AND handler = ? AND id = ?",
                [(pinned, *key) for key in keys],
            )

    def retain(self, owner: str, image: StoredImage) -> None:
        """Keep an image's content for an owner such as a container, even after its removal."""
        with self._database.write_transaction():
            query = "SELECT 1 FROM manifests WHERE digest = ?"
            if not self._database.execute(query, (image.manifest,)).fetchone():
                raise not_pulled_error(image.id, image.handler)
            self._database.execute(
                "INSERT OR IGNORE INTO holds (owner, manifest) VALUES (?, ?)",
                (owner, image.manifest),
            )

    def release(self, owner: str) -> None:
        """Drop an owner's references, and collect content that only it referenced."""
        query = (
            "SELECT 1 FROM holds WHERE owner = :owner AND manifest NOT IN (SELECT manifest FROM "
            "images UNION SELECT manifest FROM holds WHERE owner <> :owner)"
        )
        delete = "DELETE FROM holds WHERE owner = ?"
        with self._database.write_transaction():
            is_last = self._database.execute(query, {"owner": owner}).fetchone()
            if not is_last:
                self._database.execute(delete, (owner,))
        if is_last:
            with self._database.write_transaction(durable=True):
                self._database.execute(delete, (owner,))
            self.collect_garbage()

    @contextmanager
    def lease(self, purpose: str) -> Iterator[Lease]:
        """Protect the content added to the lease until the image is committed.

        After a transient failure or cancellation, complete and resumable content stays for the next
        pull with the same purpose; after any other failure it is collected.
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

    def add_to_lease(self, lease: Lease, kind: str, *digests: str) -> None:
        with self._database.write_transaction():
            self._database.executemany(
                "INSERT OR IGNORE INTO leased (lease, kind, digest) VALUES (?, ?, ?)",
                [(lease.id, kind, digest) for digest in digests],
            )

    def read_document(self, descriptor: Descriptor) -> bytes | None:
        """Return a document, or None if it is missing or damaged."""
        path = self._paths.document(descriptor.digest)
        try:
            data = path.read_bytes()
            verify_content(data, descriptor, str(path))
        except (OSError, CorruptContent):
            return None
        return data

    def write_document(self, lease: Lease, digest: str, data: bytes) -> None:
        path = self._paths.document(digest)
        temporary = lease.directory / uuid4().hex
        try:
            path.parent.mkdir(exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise store_error(self.root, error) from None

    def layer_path(self, diff_id: str) -> Path:
        return self._paths.layer(diff_id)

    def blob_path(self, digest: str) -> Path:
        """Return the path of a download until it is unpacked."""
        return self._paths.blob(digest)

    def blob_lock(self, digest: str) -> Path:
        """Return the lock file of the process that writes the blob."""
        return self._paths.blob_lock(digest)

    def sync(self) -> None:
        """Flush the store's filesystem, so that a power failure does not lose content."""
        try:
            sync_filesystem(self.root)
        except OSError as error:
            raise store_error(self.root, error) from None

    def commit_layer(self, unpacked: Path, diff_id: str) -> None:
        """Move an unpacked layer, which a lease must protect, to its final path."""
        try:
            unpacked.rename(self.layer_path(diff_id))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise store_error(self.root, error) from None
            remove_tree(unpacked)  # another blob with the same layer was committed first

    def commit(self, lease: Lease, image: NewImage, sizes: dict[str, TreeUsage]) -> StoredImage:
        """Record an image under its names, and delete the leases of its pull."""
        with self._database.write_transaction(durable=True):
            self._refuse_incomplete(image)
            self._write_manifest(image, sizes)
            self._database.executemany(
                "INSERT OR IGNORE INTO documents (root, digest) VALUES (?, ?)",
                [(image.variant.root, digest) for digest in image.documents],
            )
            self._delete_leases(lease)
            return self._write_variant(image.variant)

    def add_variant(self, variant: ImageVariant) -> StoredImage | None:
        """Record an image for another handler, or return None if its content is not stored."""
        with self._database.write_transaction():
            stored = self._database.column(
                "SELECT digest FROM manifests JOIN names ON root = ? WHERE digest = ?",
                (variant.root, variant.manifest),
            )
            return self._write_variant(variant) if stored else None

    def _write_variant(self, variant: ImageVariant) -> StoredImage:
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
            *(d for d in image.documents if not self._paths.document(d).exists()),
            *(
                layer.diff_id
                for layer in image.layers
                if layer.kept and not self.layer_path(layer.diff_id).is_dir()
            ),
        ]
        if missing:
            raise ImageNotPulled(
                f"{missing[0]} of {image.id} disappeared from {self.root} during the pull.",
                "Something other than winpod removed it; pull the image again.",
            )

    def _write_manifest(self, image: NewImage, sizes: dict[str, TreeUsage]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO layers (diff_id, bytes, inodes) VALUES (?, ?, ?)",
            [(diff_id, size.bytes, size.inodes) for diff_id, size in sizes.items()],
        )
        manifest = image.variant.manifest
        documents = sum(self._paths.document(d).stat().st_size for d in (manifest, image.id))
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

    def _delete_leases(self, lease: Lease) -> None:
        """Delete this lease and all leases of dead processes with the same purpose."""
        live = self._sessions.active()
        rows = self._database.execute(
            "SELECT id, session FROM leases WHERE purpose = "
            "(SELECT purpose FROM leases WHERE id = ?)",
            (lease.id,),
        ).fetchall()
        done = [row["id"] for row in rows if row["session"] not in live or row["id"] == lease.id]
        self._database.executemany(
            "DELETE FROM leases WHERE id = ?", [(lease_id,) for lease_id in done]
        )

    def work_directory(self) -> WorkDirectory:
        """Return the work directory of this process, creating it if needed."""
        with self._database.write_transaction():
            return self._sessions.current()

    def _begin(self, purpose: str) -> Lease:
        with self._database.write_transaction():
            directory = self._sessions.current().directory
            lease = Lease(uuid4().hex, directory)
            self._database.execute(
                "INSERT INTO leases (id, purpose, session, created_at) VALUES (?, ?, ?, ?)",
                (lease.id, purpose, directory.name, time.time()),
            )
        return lease

    def _end(self, lease: Lease, *, abandon: bool) -> None:
        with self._database.write_transaction():
            if abandon:
                self._database.execute("UPDATE leases SET session = '' WHERE id = ?", (lease.id,))
            else:
                self._database.execute("DELETE FROM leases WHERE id = ?", (lease.id,))
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete content that is unreferenced and not in use by a live process."""
        with self._database.write_transaction():
            garbage = [*self._paths.ingest.glob("trash-*"), *self._sessions.stale()]
            delete_unreferenced(self._database, time.time() - self._grace, self._sessions.active())
            garbage += unreferenced_files(self._database, self._paths)
            trash = [out for path in garbage if (out := rename_aside(path, self._paths.ingest))]
        for path in trash:
            remove_tree(path, ignore_errors=True)


def _size_on_disk(path: Path) -> int | None:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return None

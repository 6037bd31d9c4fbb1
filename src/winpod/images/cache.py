"""What registries said, kept on disk: documents by digest, and which digest a tag had.

A cache and nothing more. Content is checked against its digest whenever it is read, so a damaged
entry is as good as none; a cache that cannot be written is only a slower one. Files appear whole,
so several processes may use it at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from winpod.images.errors import BadContent
from winpod.images.home import user_home
from winpod.images.manifests import Descriptor, is_digest, pointer, verify
from winpod.images.references import Reference


def default_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else user_home() / ".cache"
    return home / "winpod"


class Cache:
    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def read(self, descriptor: Descriptor) -> bytes | None:
        """The content of a digest, or None where it is missing or damaged."""
        path = self._blob(descriptor.digest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            verify(data, descriptor, str(path))
        except BadContent:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return data

    def write(self, digest: str, data: bytes) -> None:
        self._write(self._blob(digest), data)

    def resolved(self, reference: Reference) -> Descriptor | None:
        """What a tag was when a registry was last asked."""
        try:
            record = json.loads(self._tag(reference).read_bytes())
            digest = str(record["digest"])
            if record["reference"] != str(reference) or not is_digest(digest):
                return None
            return pointer(digest)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, reference: Reference, digest: str) -> None:
        record = {"reference": str(reference), "digest": digest}
        self._write(self._tag(reference), json.dumps(record).encode())

    def _blob(self, digest: str) -> Path:
        return self.directory / "blobs" / digest.replace(":", "/")

    def _tag(self, reference: Reference) -> Path:
        name = hashlib.sha256(str(reference).encode()).hexdigest()
        return self.directory / "tags" / f"{name}.json"

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()

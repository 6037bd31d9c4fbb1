"""Where a store keeps what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    root: Path

    def make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        for part in (self.content, self.layers, self.blobs):
            part.mkdir(parents=True, exist_ok=True)

    @property
    def content(self) -> Path:
        return self.root / "content"

    @property
    def layers(self) -> Path:
        return self.root / "layers"

    @property
    def ingest(self) -> Path:
        return self.root / "ingest"

    @property
    def blobs(self) -> Path:
        return self.root / "ingest" / "blobs"

    def document(self, digest: str) -> Path:
        return self.root / "content" / digest.replace(":", "/")

    def layer(self, diff_id: str) -> Path:
        return self.root / "layers" / diff_id.partition(":")[2]

    def blob(self, digest: str) -> Path:
        """Where a download is kept until it is unpacked."""
        return self.blobs / digest.replace(":", "-")

    def blob_lock(self, digest: str) -> Path:
        """The lock of whoever writes there."""
        path = self.blob(digest)
        return path.with_name(f"{path.name}.lock")

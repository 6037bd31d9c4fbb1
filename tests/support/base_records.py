"""Records of Wine bases."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, content: str | bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def save(root: Path, name: str = "aaa111", **changes: Any) -> Path:
    record = {
        "built": "2026-01-02T03:04:05+00:00",
        "recipe": "r",
        "with32Bit": False,
        "size": 1000,
        "packages": {"wine64": "10.0~repack-6"},
        "absent": ["setx"],
        "sources": ["deb x"],
        **changes,
    }
    write(root / "bases" / name / "base.json", json.dumps(record))
    return root / "bases" / name

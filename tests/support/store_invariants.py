"""Consistency check of an image store: all references exist and are valid, without leftovers."""

import hashlib
import sqlite3
from pathlib import Path

from winpod.images.store.store import Store


def check(root: Path) -> None:
    """Assert that the store has all content that it references, and no other content."""
    with Store(root) as store:
        images = store.images()
        layers = {path for image in images for path in store.layers_of(image)}
        for image in images:
            assert image.tags or image.digests
            for digest in (image.manifest, image.id):
                store.content(digest)
    for path in (root / "content").glob("*/*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    for path in layers:
        assert (path / "layer.json").exists()
    database = sqlite3.connect(root / "state.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    database.close()


def leftovers(root: Path) -> set[str]:
    """Return content of the store besides its database and what its images need.

    An empty session belongs to a store that is open.
    """
    with Store(root) as store:
        images = store.images()
        kept = {path for image in images for path in store.layers_of(image)}
        found = {f"layers/{path.name}" for path in (root / "layers").iterdir() if path not in kept}
        if not images:
            found |= {f"content/{path.name}" for path in (root / "content").glob("*/*")}
    for path in (root / "ingest").iterdir():
        content = {f"ingest/{path.name}/{one.name}" for one in path.iterdir()}
        is_session = path.name.startswith("session-")
        locks = {f"ingest/{path.name}/{name}" for name in ("lock", "owner")}
        found |= content - locks if is_session else content
    database = sqlite3.connect(root / "state.db")
    found |= {f"lease {row[0]}" for row in database.execute("SELECT purpose FROM leases")}
    database.close()
    return found

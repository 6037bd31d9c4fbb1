"""What nothing in the store wants any more: rows, and files in their places."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

from winpod.images.store_places import Places
from winpod.images.store_transactions import Transactions


def forget_unwanted(database: Transactions, oldest: float, living: Collection[str]) -> None:
    """Leases that are older and nobody's, and whatever only they wanted."""
    rows = database.execute(
        "SELECT id, session FROM leases WHERE created_at < ?", (oldest,)
    ).fetchall()
    database.executemany(
        "DELETE FROM leases WHERE id = ?",
        [(row["id"],) for row in rows if row["session"] not in living],
    )
    for statement in (
        "DELETE FROM documents WHERE root NOT IN (SELECT root FROM names)",
        "DELETE FROM images WHERE NOT EXISTS (SELECT 1 FROM names WHERE "
        "(names.host, names.handler, names.id) = (images.host, images.handler, images.id))",
        "DELETE FROM manifests WHERE digest NOT IN "
        "(SELECT manifest FROM images UNION SELECT manifest FROM holds)",
        "DELETE FROM layers WHERE diff_id NOT IN (SELECT diff_id FROM manifest_layers WHERE kept)",
    ):
        database.execute(statement)


def unwanted_files(database: Transactions, places: Places) -> list[Path]:
    documents = database.column(
        "SELECT digest FROM documents UNION SELECT digest FROM manifests "
        "UNION SELECT config FROM manifests "
        "UNION SELECT digest FROM leased WHERE kind = 'document'"
    )
    layers = database.column(
        "SELECT diff_id FROM manifest_layers WHERE kept "
        "UNION SELECT digest FROM leased WHERE kind = 'layer'"
    )
    blobs = database.column("SELECT digest FROM leased WHERE kind = 'blob'")
    kept = {
        *map(places.document, documents),
        *map(places.layer, layers),
        *map(places.blob, blobs),
        *map(places.blob_lock, blobs),
    }
    found = [
        *places.content.glob("*/*"),
        *places.layers.iterdir(),
        *places.blobs.iterdir(),
    ]
    return [path for path in found if path not in kept]


def take_out(path: Path, ingest: Path) -> Path | None:
    """Take a path out of its place at once; removing what a directory holds comes later."""
    if path.name.startswith("trash-"):
        return path
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return None
    return path.rename(ingest / f"trash-{uuid4().hex}")

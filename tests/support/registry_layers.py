"""Image layers with registry hives."""

from pathlib import Path

from tests.support.hivex import (
    Keys,
    make_hive,
)


def layer(place: Path, **hives: Keys | bytes) -> Path:
    """Create an unpacked layer with the given hives."""
    (place / "Hives").mkdir(parents=True)
    for name, content in hives.items():
        if isinstance(content, bytes):
            (place / "Hives" / name).write_bytes(content)
        else:
            make_hive(place / "Hives" / name, content)
    return place

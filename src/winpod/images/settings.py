"""How images are pulled, and where everything is kept by default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from winpod.images.home import user_home
from winpod.windows.reading import At


class BasePolicy(StrEnum):
    """What happens to Microsoft's base layers: the Wine base stands in for them, or not."""

    SKIP = "skip"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class ImageSettings:
    max_concurrent_downloads: int = 3
    inactivity_timeout: float = 300.0
    base_layers: BasePolicy = BasePolicy.SKIP
    sync: bool = False


def read_image_settings(table: At) -> ImageSettings:
    """The section `[images]`."""
    default = ImageSettings()
    table.allow("max_concurrent_downloads", "inactivity_timeout", "base_layers", "sync")
    downloads = table.get("max_concurrent_downloads")
    timeout = table.get("inactivity_timeout")
    return ImageSettings(
        int(downloads.number(default.max_concurrent_downloads, 1, 64)),
        float(timeout.number(default.inactivity_timeout, 1, 86400)),
        BasePolicy(table.get("base_layers").one_of(*BasePolicy) or default.base_layers),
        table.get("sync").flag(),
    )


def default_root() -> Path:
    """`$WINPOD_ROOT`, else the system's place for root and the user's for everyone else."""
    if chosen := os.environ.get("WINPOD_ROOT"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/winpod")
    return user_home() / ".local/share/winpod"

"""Settings of this machine: where things are kept, and how images are pulled.

The first file that exists of `$WINPOD_CONFIG`, `~/.config/winpod/config.toml` and
`/etc/winpod/config.toml` is read; every key has a default. A key that is not known is an error,
because a setting that is silently ignored is worse than none.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from winpod.images.home import user_home
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build
from winpod.windows.errors import InvalidInput

SYSTEM_FILE = Path("/etc/winpod/config.toml")


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


@dataclass(frozen=True, slots=True)
class Config:
    root: Path
    host_build: Build = DEFAULT_HOST
    images: ImageSettings = ImageSettings()


def default_root() -> Path:
    """`$WINPOD_ROOT`, else the system's place for root and the user's for everyone else."""
    if chosen := os.environ.get("WINPOD_ROOT"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/winpod")
    return user_home() / ".local/share/winpod"


def read_config() -> Config:
    chosen = os.environ.get("WINPOD_CONFIG")
    files = (Path(chosen),) if chosen else (user_home() / ".config/winpod/config.toml", SYSTEM_FILE)
    for file in files:
        try:
            text = file.read_text()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{file} cannot be read: {error}.") from None
        return _parse(text, file)
    if chosen:
        raise InvalidInput(f"{chosen} does not exist.", "WINPOD_CONFIG names it; correct that.")
    return Config(default_root())


def _parse(text: str, file: Path) -> Config:
    try:
        table = tomllib.loads(text)
        _refuse_unknown(table, {"root", "host_build", "images"}, "")
        images = table.get("images", {})
        if not isinstance(images, dict):
            raise ValueError('"images" is not a table')
        root = _text(table, "root", "")
        return Config(
            Path(root) if root and "WINPOD_ROOT" not in os.environ else default_root(),
            parse_build(_text(table, "host_build", str(DEFAULT_HOST))),
            _image_settings(images),
        )
    except (ValueError, InvalidInput) as error:
        raise InvalidInput(
            f"{file} is not a configuration: {str(error).rstrip('.')}.",
            "docs/images.md has its format.",
        ) from None


def _image_settings(table: Mapping[str, Any]) -> ImageSettings:
    default = ImageSettings()
    _refuse_unknown(
        table, {"max_concurrent_downloads", "inactivity_timeout", "base_layers", "sync"}, "images."
    )
    sync = table.get("sync", default.sync)
    if not isinstance(sync, bool):
        raise ValueError('"images.sync" is not true or false')
    return ImageSettings(
        int(_number(table, "max_concurrent_downloads", default.max_concurrent_downloads, 1, 64)),
        float(_number(table, "inactivity_timeout", default.inactivity_timeout, 1, 86400)),
        BasePolicy(_text(table, "base_layers", default.base_layers)),
        sync,
    )


def _refuse_unknown(table: Mapping[str, Any], known: set[str], within: str) -> None:
    if unknown := sorted(set(table) - known):
        raise ValueError(
            f'"{within}{unknown[0]}" is not a setting (there are {", ".join(sorted(known))})'
        )


def _text(table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f'"{key}" is not text')
    return value


def _number(table: Mapping[str, Any], key: str, default: float, least: float, most: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f'"images.{key}" is not a number from {least:g} to {most:g}')
    return value

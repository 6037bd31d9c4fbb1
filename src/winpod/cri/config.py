"""The configuration of this machine: each section is read by the room that it is about.

The first file that exists of `$WINPOD_CONFIG`, `~/.config/winpod/config.toml` and
`/etc/winpod/config.toml` is read; every key has a default. A key that is not known is an error,
because a setting that is silently ignored is worse than none.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from winpod.cri.settings import (
    HypervisorSettings,
    RuntimeSettings,
    read_hypervisor_settings,
    read_runtime_settings,
)
from winpod.images.home import user_home
from winpod.images.settings import ImageSettings, default_root, read_image_settings
from winpod.network.settings import NetworkSettings, read_network_settings
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import KNOWN, Handlers
from winpod.windows.reading import At

_SECTIONS = ("root", "host_build", "images", "handlers", "network", "runtime", "hypervisor")
SYSTEM_FILE = Path("/etc/winpod/config.toml")


@dataclass(frozen=True, slots=True)
class Config:
    root: Path
    host_build: Build = DEFAULT_HOST
    images: ImageSettings = field(default_factory=ImageSettings)
    handlers: Handlers = KNOWN
    network: NetworkSettings = field(default_factory=NetworkSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    hypervisor: HypervisorSettings = field(default_factory=HypervisorSettings)


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
        table = At(tomllib.loads(text))
        table.allow(*_SECTIONS)
        root = table.get("root").text()
        return Config(
            Path(root) if root and "WINPOD_ROOT" not in os.environ else default_root(),
            parse_build(table.get("host_build").text(str(DEFAULT_HOST))),
            read_image_settings(table.get("images")),
            KNOWN.configured(table.get("handlers")),
            read_network_settings(table.get("network")),
            read_runtime_settings(table.get("runtime")),
            read_hypervisor_settings(table.get("hypervisor")),
        )
    except (tomllib.TOMLDecodeError, InvalidInput) as error:
        raise InvalidInput(
            f"{file} is not a configuration: {str(error).rstrip('.')}.",
            "docs/configuration.md has its format.",
        ) from None

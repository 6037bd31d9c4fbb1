"""Configuration file of winpod.

The first existing file of `$WINPOD_CONFIG`, `~/.config/winpod/config.toml` and
`/etc/winpod/config.toml` is read. Every key has a default; an unknown key is an error, so that
typos are not silently ignored.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from winpod.errors import InvalidInput
from winpod.field_reader import Field, InvalidField
from winpod.files import user_home
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers

DEFAULT_PLUGIN_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))


DEFAULT_BRIDGE = "winpod0"


DEFAULT_SUBNETS = (IPv4Network("10.213.0.0/16"),)


SOCKET = Path("/run/winpod/winpod.sock")
_LOG_LEVELS = ("debug", "info", "warning", "error")


class ComputeKind(StrEnum):
    """Compute backend: containers under Wine, or simulated containers."""

    WINE = "wine"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Section `[runtime]`. `warm_silos` (key `warm_shells`) is the number of silos to boot in
    advance. With an empty `oci_runtime` the first installed of runc and crun is used."""

    socket: Path = SOCKET
    tcp: str = ""
    compute: ComputeKind = ComputeKind.WINE
    warm_silos: int = 2
    oci_runtime: str = ""
    log_level: str = "info"


def read_runtime_settings(table: Field) -> RuntimeSettings:
    """Read the section `[runtime]`."""
    table.reject_unknown_keys("socket", "tcp", "compute", "warm_shells", "oci_runtime", "log_level")
    default = RuntimeSettings()
    return RuntimeSettings(
        Path(table.get("socket").text(str(default.socket))),
        table.get("tcp").text(),
        ComputeKind(table.get("compute").one_of(*ComputeKind) or default.compute),
        int(table.get("warm_shells").number(default.warm_silos, 0, 100)),
        table.get("oci_runtime").text(),
        table.get("log_level").one_of(*_LOG_LEVELS) or default.log_level,
    )


@dataclass(frozen=True, slots=True)
class HypervisorSettings:
    """Section `[hypervisor]`. Emulation is many times slower, for machines without KVM."""

    allow_emulation: bool = False


def read_hypervisor_settings(table: Field) -> HypervisorSettings:
    """Read the section `[hypervisor]`."""
    table.reject_unknown_keys("allow_emulation")
    return HypervisorSettings(table.get("allow_emulation").flag())


class BaseLayerPolicy(StrEnum):
    """Whether to pull Microsoft's base layers, or to replace them with the Wine base."""

    SKIP = "skip"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class ImageSettings:
    max_concurrent_downloads: int = 3
    inactivity_timeout: float = 300.0
    base_layers: BaseLayerPolicy = BaseLayerPolicy.SKIP
    sync: bool = False


def read_image_settings(table: Field) -> ImageSettings:
    """Read the section `[images]`."""
    default = ImageSettings()
    table.reject_unknown_keys(
        "max_concurrent_downloads", "inactivity_timeout", "base_layers", "sync"
    )
    downloads = table.get("max_concurrent_downloads")
    timeout = table.get("inactivity_timeout")
    return ImageSettings(
        int(downloads.number(default.max_concurrent_downloads, 1, 64)),
        float(timeout.number(default.inactivity_timeout, 1, 86400)),
        BaseLayerPolicy(table.get("base_layers").one_of(*BaseLayerPolicy) or default.base_layers),
        table.get("sync").flag(),
    )


def default_root() -> Path:
    """Return `$WINPOD_ROOT`, else the system directory for root or the user's data directory."""
    if chosen := os.environ.get("WINPOD_ROOT"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/winpod")
    return user_home() / ".local/share/winpod"


Subnet = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Section `[network]`. `cni` is a CNI configuration directory.

    Without it a default bridge network with these subnets is used; without subnets it is created
    when the node gets its pod CIDR. Traffic to `cluster` is not masqueraded.
    """

    cni: Path | None = None
    plugins: tuple[Path, ...] = DEFAULT_PLUGIN_DIRECTORIES
    subnets: tuple[Subnet, ...] = DEFAULT_SUBNETS
    bridge: str = DEFAULT_BRIDGE
    cluster: Subnet | None = None


def read_network_settings(table: Field) -> NetworkSettings:
    """Read the section `[network]`."""
    table.reject_unknown_keys("cni", "plugins", "subnets")
    default = NetworkSettings()
    cni, subnets = table.get("cni"), table.get("subnets")
    if cni and subnets:
        raise InvalidField(subnets.path, "cannot be combined with network.cni")
    return NetworkSettings(
        Path(cni.text()) if cni.text() else None,
        tuple(map(Path, table.get("plugins").text_list())) or default.plugins,
        tuple(_subnet(item) for item in subnets.items()) or default.subnets,
    )


def _subnet(item: Field) -> Subnet:
    try:
        return ip_network(item.text())
    except ValueError as error:
        raise InvalidField(item.path, f"is not a valid subnet: {error}") from None


_SECTIONS = ("root", "host_build", "images", "handlers", "network", "runtime", "hypervisor")
SYSTEM_FILE = Path("/etc/winpod/config.toml")


@dataclass(frozen=True, slots=True)
class Config:
    root: Path
    host_build: Build = DEFAULT_HOST
    images: ImageSettings = field(default_factory=ImageSettings)
    handlers: Handlers = BUILTIN_HANDLERS
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
        raise InvalidInput(f"{chosen} does not exist.", "Correct WINPOD_CONFIG.")
    return Config(default_root())


def _parse(text: str, file: Path) -> Config:
    try:
        table = Field(tomllib.loads(text))
        table.reject_unknown_keys(*_SECTIONS)
        root = table.get("root").text()
        return Config(
            Path(root) if root and "WINPOD_ROOT" not in os.environ else default_root(),
            parse_build(table.get("host_build").text(str(DEFAULT_HOST))),
            read_image_settings(table.get("images")),
            BUILTIN_HANDLERS.with_configuration(table.get("handlers")),
            read_network_settings(table.get("network")),
            read_runtime_settings(table.get("runtime")),
            read_hypervisor_settings(table.get("hypervisor")),
        )
    except (tomllib.TOMLDecodeError, InvalidInput) as error:
        raise InvalidInput(
            f"{file} is not a valid configuration: {str(error).rstrip('.')}.",
            "See docs/configuration.md.",
        ) from None

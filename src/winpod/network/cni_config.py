"""CNI configuration files: parse them, and write the default one.

As in every CNI runtime, the first file by name with a known extension is the network of all pods.
The directory is checked on every call, so adding, changing or removing a network needs no restart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from winpod.config import DEFAULT_BRIDGE, DEFAULT_SUBNETS
from winpod.labels import CNI_CLUSTER_KEY, CNI_MASQUERADE_KEY
from winpod.network.attachments import Json
from winpod.network.errors import NoCniConfig

DEFAULT_DIRECTORY = Path("/etc/cni/net.d")
DEFAULT_FILE = "99-winpod.conflist"
DEFAULT_LEASES = Path("/run/winpod/leases")

NEWEST_VERSION = (1, 1, 0)

_EXTENSIONS = (".conflist", ".conf", ".json")
_NETWORK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class PluginConfiguration:
    type: str
    document: Json

    @property
    def capabilities(self) -> frozenset[str]:
        declared = self.document.get("capabilities") or {}
        return frozenset(name for name, supported in declared.items() if supported)

    @property
    def ipam(self) -> str:
        return str((self.document.get("ipam") or {}).get("type", ""))


@dataclass(frozen=True)
class CniNetwork:
    """A CNI configuration list. `data` is its JSON text; `source` names its file in messages."""

    name: str
    version: str
    plugins: tuple[PluginConfiguration, ...]
    check: bool
    collect: bool
    masquerade: bool
    cluster: str
    data: bytes
    source: str

    def supports_version(self, *version: int) -> bool:
        return parse_version(self.version) >= version

    @property
    def subnets(self) -> tuple[str, ...]:
        return tuple(
            str(subnet)
            for plugin in self.plugins
            for range_set in (plugin.document.get("ipam") or {}).get("ranges") or ()
            for subnet in (address_range.get("subnet") for address_range in range_set)
            if subnet
        )


class CniConfigDirectory:
    """A CNI configuration directory, read again when it changes."""

    def __init__(self, path: Path = DEFAULT_DIRECTORY) -> None:
        self.path = path
        self._fingerprint: object = None
        self._network: CniNetwork | None = None

    def network(self) -> CniNetwork:
        """Return the network of all pods, or raise NoCniConfig."""
        fingerprint = self._compute_fingerprint()
        if fingerprint != self._fingerprint or self._network is None:
            self._network = self._read()
            self._fingerprint = fingerprint
        return self._network

    def files(self) -> list[Path]:
        try:
            return sorted(
                path
                for path in self.path.iterdir()
                if path.suffix in _EXTENSIONS and path.is_file()
            )
        except FileNotFoundError:
            return []

    def _compute_fingerprint(self) -> object:
        """Return a value that changes when any configuration file changes."""
        files = [*self.files(), *self.path.glob("*/*.conf")]
        return [(path, _file_state(path)) for path in files]

    def _read(self) -> CniNetwork:
        files = self.files()
        if not files:
            raise NoCniConfig(
                f"There is no network for pods: {self.path} has no CNI configuration.",
                "Put a .conflist file there, or install Debian's containernetworking-plugins and "
                "restart winpod to get the default network.",
            )
        try:
            return read_file(files[0])
        except OSError as error:
            raise NoCniConfig(
                f"The CNI configuration {files[0]} cannot be read: {error.strerror}."
            ) from error


def _file_state(path: Path) -> object:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_file(path: Path) -> CniNetwork:
    data = path.read_bytes()
    if path.suffix == ".conflist":
        return parse_network(data, str(path), path.parent)
    document = _decode(data, str(path))
    as_list = {
        "cniVersion": document.get("cniVersion", ""),
        "name": document.get("name", ""),
        "plugins": [document],
    }
    return parse_network(json.dumps(as_list).encode(), str(path))


def parse_network(data: bytes, source: str, folder: Path | None = None) -> CniNetwork:
    """Parse a configuration list; with `folder`, append the plugins of `<folder>/<name>/*.conf`."""
    document = _decode(data, source)
    name = document.get("name")
    if not isinstance(name, str) or not _NETWORK_NAME.fullmatch(name):
        raise _invalid(source, f"its name is {json.dumps(name)}")
    plugins = list(_objects(document.get("plugins") or [], "plugins", source))
    if folder and not _flag(document, "loadOnlyInlinedPlugins", source):
        loaded = [
            _decode(path.read_bytes(), str(path)) for path in sorted((folder / name).glob("*.conf"))
        ]
        if loaded:
            plugins += loaded
            merged = {**document, "plugins": plugins, "loadOnlyInlinedPlugins": True}
            data = json.dumps(merged).encode()
    if not plugins:
        raise _invalid(source, "it lists no plugins")
    return CniNetwork(
        name=name,
        version=_choose_version(document, source),
        plugins=tuple(_plugin(plugin, source) for plugin in plugins),
        check=not _flag(document, "disableCheck", source),
        collect=not _flag(document, "disableGC", source),
        masquerade=_flag(document, CNI_MASQUERADE_KEY, source),
        cluster=str(document.get(CNI_CLUSTER_KEY, "")),
        data=data,
        source=source,
    )


def parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def default_network(
    subnets: Sequence[IPv4Network | IPv6Network] = DEFAULT_SUBNETS,
    *,
    bridge: str = DEFAULT_BRIDGE,
    leases: Path = DEFAULT_LEASES,
    cluster: IPv4Network | IPv6Network | None = None,
) -> dict[str, Any]:
    """Return the default configuration: a bridge with host-local IPAM, portmap and bandwidth.

    One masquerade rule per subnet replaces the bridge plugin's chain per pod, which halves the
    time to connect a pod and leaves no rules behind. Leases are in /run, so that they disappear
    on reboot together with the pods.
    """
    return {
        "cniVersion": "1.0.0",
        "name": "winpod",
        "disableGC": True,
        CNI_MASQUERADE_KEY: True,
        **({CNI_CLUSTER_KEY: str(cluster)} if cluster else {}),
        "plugins": [
            {
                "type": "bridge",
                "bridge": bridge,
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(leases),
                    "ranges": [[{"subnet": str(subnet)}] for subnet in subnets],
                    "routes": [{"dst": route} for route in _default_routes(subnets)],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        ],
    }


def network_text(network: Json) -> str:
    return json.dumps(network, indent=2) + "\n"


def write_network(directory: Path, network: Json) -> Path:
    """Write a configuration atomically, under a name that sorts after any other."""
    target = directory / DEFAULT_FILE
    temporary = directory / f".{DEFAULT_FILE}.new"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary.write_text(network_text(network))
        return temporary.replace(target)
    except OSError as error:
        raise NoCniConfig(
            f"The default network's configuration {target} cannot be written: {error.strerror}."
        ) from error


def _default_routes(subnets: Sequence[IPv4Network | IPv6Network]) -> list[str]:
    versions = sorted({subnet.version for subnet in subnets})
    return ["0.0.0.0/0" if version == 4 else "::/0" for version in versions]


def _plugin(document: Json, source: str) -> PluginConfiguration:
    kind = document.get("type")
    if not isinstance(kind, str) or not kind or "/" in kind:
        raise _invalid(source, f"the type of a plugin is {json.dumps(kind)}")
    for key in ("capabilities", "ipam"):
        if not isinstance(document.get(key) or {}, dict):
            raise _invalid(source, f"{key} of plugin {kind} is not an object")
    return PluginConfiguration(kind, document)


def _choose_version(document: Json, source: str) -> str:
    """Return the newest supported version of `cniVersions` and `cniVersion`."""
    single = document.get("cniVersion") or "0.1.0"
    offered = [*(document.get("cniVersions") or ()), single]
    try:
        supported = [version for version in offered if parse_version(version) <= NEWEST_VERSION]
    except (AttributeError, ValueError) as error:
        raise _invalid(source, "its cniVersion is not a version such as 1.0.0") from error
    if not supported:
        raise _invalid(source, f"CNI version {single} is newer than 1.1.0, the newest supported")
    return str(max(supported, key=parse_version))


def _flag(document: Json, key: str, source: str) -> bool:
    value = document.get(key, False)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise _invalid(source, f"{key} is {json.dumps(value)} instead of true or false")
    return value


def _objects(value: object, key: str, source: str) -> Sequence[Json]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _invalid(source, f"{key} is not a list of objects")
    return value


def _decode(data: bytes, source: str) -> Json:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise _invalid(source, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise _invalid(source, "it is not a JSON object")
    return document


def _invalid(source: str, reason: str) -> NoCniConfig:
    return NoCniConfig(
        f"The CNI configuration {source} cannot be used: {reason}.", "Correct or remove the file."
    )

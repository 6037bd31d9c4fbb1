"""CNI configurations: read from a directory, and written where there is none.

As every CNI runtime does: of the files in the directory with a known ending, the first by name is
the network of all pods. The directory is looked at again for each call, so that a network appears,
changes or goes without a restart; a sandbox is taken apart with the configuration it was made with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from winpod.network.attachments import Json
from winpod.network.errors import NoNetwork

DEFAULT_DIRECTORY = Path("/etc/cni/net.d")
DEFAULT_FILE = "99-winpod.conflist"
DEFAULT_SUBNETS = (IPv4Network("10.213.0.0/16"),)
DEFAULT_LEASES = Path("/run/winpod/leases")
DEFAULT_BRIDGE = "winpod0"

NEWEST_VERSION = (1, 1, 0)
MASQUERADE = "winpod.dev/masquerade"
CLUSTER = "winpod.dev/cluster"

_ENDINGS = (".conflist", ".conf", ".json")
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
class Network:
    """One configuration list. `data` is it as JSON; `source` says where it was read."""

    name: str
    version: str
    plugins: tuple[PluginConfiguration, ...]
    check: bool
    collect: bool
    masquerade: bool
    cluster: str
    data: bytes
    source: str

    def speaks(self, *version: int) -> bool:
        return parse_version(self.version) >= version

    @property
    def subnets(self) -> tuple[str, ...]:
        return tuple(
            str(subnet)
            for plugin in self.plugins
            for choices in (plugin.document.get("ipam") or {}).get("ranges") or ()
            for subnet in (choice.get("subnet") for choice in choices)
            if subnet
        )


class Directory:
    """The configurations of a directory, read again when it changed."""

    def __init__(self, path: Path = DEFAULT_DIRECTORY) -> None:
        self.path = path
        self._seen: object = None
        self._network: Network | None = None

    def network(self) -> Network:
        """The network of all pods, or NoNetwork with the reason."""
        seen = self._look()
        if seen != self._seen or self._network is None:
            self._network = self._read()
            self._seen = seen
        return self._network

    def files(self) -> list[Path]:
        try:
            return sorted(
                path for path in self.path.iterdir() if path.suffix in _ENDINGS and path.is_file()
            )
        except FileNotFoundError:
            return []

    def _look(self) -> object:
        """Something that differs once a file does."""
        files = [*self.files(), *self.path.glob("*/*.conf")]
        return [(path, _state(path)) for path in files]

    def _read(self) -> Network:
        files = self.files()
        if not files:
            raise NoNetwork(
                f"There is no network for pods: {self.path} has no CNI configuration.",
                "Put a .conflist file there, or install Debian's containernetworking-plugins and "
                "start again for the default network.",
            )
        try:
            return read_file(files[0])
        except OSError as error:
            raise NoNetwork(
                f"The CNI configuration {files[0]} cannot be read: {error.strerror}."
            ) from error


def _state(path: Path) -> object:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(path: Path) -> Network:
    data = path.read_bytes()
    if path.suffix == ".conflist":
        return parse_network(data, str(path), path.parent)
    document = _decode(data, str(path))
    listed = {
        "cniVersion": document.get("cniVersion", ""),
        "name": document.get("name", ""),
        "plugins": [document],
    }
    return parse_network(json.dumps(listed).encode(), str(path))


def parse_network(data: bytes, source: str, folder: Path | None = None) -> Network:
    """A configuration list. With a folder, further plugins come from `<folder>/<name>/*.conf`."""
    document = _decode(data, source)
    name = document.get("name")
    if not isinstance(name, str) or not _NETWORK_NAME.fullmatch(name):
        raise _broken(source, f"its name is {json.dumps(name)}")
    plugins = list(_objects(document.get("plugins") or [], "plugins", source))
    if folder and not _flag(document, "loadOnlyInlinedPlugins", source):
        further = [
            _decode(path.read_bytes(), str(path)) for path in sorted((folder / name).glob("*.conf"))
        ]
        if further:
            plugins += further
            whole = {**document, "plugins": plugins, "loadOnlyInlinedPlugins": True}
            data = json.dumps(whole).encode()
    if not plugins:
        raise _broken(source, "it names no plugins")
    return Network(
        name=name,
        version=_choose_version(document, source),
        plugins=tuple(_plugin(plugin, source) for plugin in plugins),
        check=not _flag(document, "disableCheck", source),
        collect=not _flag(document, "disableGC", source),
        masquerade=_flag(document, MASQUERADE, source),
        cluster=str(document.get(CLUSTER, "")),
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
    """A bridge of this machine's own, with addresses for pods and ports of the host led to them.

    Masquerading is one rule for the network instead of the bridge plugin's chain for each pod:
    half the time of connecting one, and nothing to leave behind. Leases are kept where they are
    gone after a reboot, as the pods are.
    """
    return {
        "cniVersion": "1.0.0",
        "name": "winpod",
        "disableGC": True,
        MASQUERADE: True,
        **({CLUSTER: str(cluster)} if cluster else {}),
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
    """Under a name that any other configuration comes before. The file appears whole."""
    target = directory / DEFAULT_FILE
    unfinished = directory / f".{DEFAULT_FILE}.new"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(network_text(network))
        return unfinished.replace(target)
    except OSError as error:
        raise NoNetwork(
            f"The default network's configuration {target} cannot be written: {error.strerror}."
        ) from error


def _default_routes(subnets: Sequence[IPv4Network | IPv6Network]) -> list[str]:
    versions = sorted({subnet.version for subnet in subnets})
    return ["0.0.0.0/0" if version == 4 else "::/0" for version in versions]


def _plugin(document: Json, source: str) -> PluginConfiguration:
    kind = document.get("type")
    if not isinstance(kind, str) or not kind or "/" in kind:
        raise _broken(source, f"the type of a plugin is {json.dumps(kind)}")
    for key in ("capabilities", "ipam"):
        if not isinstance(document.get(key) or {}, dict):
            raise _broken(source, f"{key} of plugin {kind} is not an object")
    return PluginConfiguration(kind, document)


def _choose_version(document: Json, source: str) -> str:
    """The newest of `cniVersions` that is known here, else `cniVersion`."""
    single = document.get("cniVersion") or "0.1.0"
    offered = [*(document.get("cniVersions") or ()), single]
    try:
        known = [version for version in offered if parse_version(version) <= NEWEST_VERSION]
    except (AttributeError, ValueError) as error:
        raise _broken(source, "its cniVersion is not a version such as 1.0.0") from error
    if not known:
        raise _broken(source, f"it is of CNI version {single}, and 1.1.0 is the newest known here")
    return str(max(known, key=parse_version))


def _flag(document: Json, key: str, source: str) -> bool:
    value = document.get(key, False)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise _broken(source, f"{key} is {json.dumps(value)} instead of true or false")
    return value


def _objects(value: object, key: str, source: str) -> Sequence[Json]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _broken(source, f"{key} is not a list of objects")
    return value


def _decode(data: bytes, source: str) -> Json:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise _broken(source, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise _broken(source, "it is not a JSON object")
    return document


def _broken(source: str, reason: str) -> NoNetwork:
    return NoNetwork(
        f"The CNI configuration {source} cannot be used: {reason}.", "Mend or remove the file."
    )

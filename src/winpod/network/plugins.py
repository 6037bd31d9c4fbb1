"""CNI plugins: programs that are given a configuration, and answer with a result or an error.

A plugin goes on when winpod is killed, and finishes what it began. Each has a file open and locked
for as long as it runs, which nobody else has: whoever starts next waits for the lock before it
cleans up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from winpod.network.attachments import Json
from winpod.network.configuration import Network, PluginConfiguration, parse_version
from winpod.network.errors import (
    AddressesExhausted,
    NetworkConflict,
    PluginFailed,
    PluginMissing,
    PluginNotReady,
    PluginTimedOut,
)
from winpod.network.processes import Finished, finish, start
from winpod.windows.errors import WinpodError

DEFAULT_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
DEFAULT_TIME_LIMIT = 60.0

DEBIAN_PACKAGE = "containernetworking-plugins"
IN_DEBIAN_PACKAGE = frozenset(
    (
        *("bandwidth", "bridge", "dhcp", "firewall", "host-device", "host-local", "ipvlan"),
        *("loopback", "macvlan", "portmap", "ptp", "sbr", "static", "tuning", "vlan", "vrf"),
    )
)

IDLE_WITHOUT: Mapping[str, tuple[str, frozenset[str]]] = {
    "portmap": ("portMappings", frozenset({"runtimeConfig"})),
    "bandwidth": ("bandwidth", frozenset({"runtimeConfig", "ingressRate", "egressRate"})),
}
"""Plugins that do nothing for a sandbox that has none of a capability's data, unless one of these
keys is in their configuration. They are not run then: portmap's DEL alone runs iptables a score of
times to find that there is nothing."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TRY_AGAIN, _NOT_AVAILABLE, _LIMITED = 11, 50, 51
_POLL = 0.01


@dataclass(frozen=True)
class Call:
    """One command about one sandbox's interface, or about a network as a whole."""

    command: str
    container_id: str = ""
    netns: str = ""
    interface: str = ""
    arguments: tuple[tuple[str, str], ...] = ()


class Plugins:
    def __init__(self, directories: Sequence[Path], lock: Path, time_limit: float) -> None:
        self.directories = tuple(directories)
        self.time_limit = time_limit
        self._lock = lock
        self._versions: dict[tuple[Path, int], tuple[str, ...]] = {}

    def find(self, kind: str, network: Network) -> Path:
        for directory in self.directories:
            path = directory / kind
            if path.is_file() and os.access(path, os.X_OK):
                return path
        places = ", ".join(str(directory) for directory in self.directories)
        raise PluginMissing(
            f'The CNI plugin {kind} of network "{network.name}" ({network.source}) '
            f"is in none of {places}.",
            f"Install Debian's {DEBIAN_PACKAGE}."
            if kind in IN_DEBIAN_PACKAGE
            else "Install it there, or take it out of the configuration.",
        )

    def has_all(self, network: Network) -> bool:
        try:
            for plugin in network.plugins:
                self.find(plugin.type, network)
                if plugin.ipam:
                    self.find(plugin.ipam, network)
        except PluginMissing:
            return False
        return True

    async def run(
        self,
        network: Network,
        plugin: PluginConfiguration,
        call: Call,
        further: Mapping[str, Any],
    ) -> Json:
        """The plugin's result. `further` comes on top of its configuration."""
        path = self.find(plugin.type, network)
        document = {
            **plugin.document,
            "name": network.name,
            "cniVersion": network.version,
            **further,
        }
        finished = await self._run(path, call, document)
        if finished.code != 0:
            raise _failure(network, plugin, call, finished)
        if not finished.output.strip():
            return {}
        try:
            result = json.loads(finished.output)
        except ValueError as error:
            raise PluginFailed(
                f'The CNI plugin {plugin.type} of network "{network.name}" answered {call.command} '
                f"with something that is not JSON: {_shown(finished.output)}"
            ) from error
        return result if isinstance(result, dict) else {}

    async def versions(self, kind: str, network: Network) -> tuple[str, ...]:
        """Which versions of CNI a plugin speaks. Asked once for each program."""
        path = self.find(kind, network)
        key = (path, path.stat().st_mtime_ns)
        if key not in self._versions:
            finished = await self._run(path, Call("VERSION"), {"cniVersion": network.version})
            try:
                spoken = json.loads(finished.output)["supportedVersions"]
            except (ValueError, KeyError, TypeError):
                spoken = []
            self._versions[key] = tuple(spoken)
        return self._versions[key]

    async def tool(self, *command: str, given: str = "") -> Finished:
        """One of the machine's own programs, such as iptables, under the same rules."""
        return await self._finish(command, _environment(), given.encode())

    async def wait_for_orphans(self) -> None:
        """Until no plugin of a process that was killed runs; those past the limit are ended."""
        deadline = time.monotonic() + self.time_limit
        while not self._is_free():
            if time.monotonic() > deadline:
                _end_holders(self._lock)
            await asyncio.sleep(_POLL)

    async def _run(self, path: Path, call: Call, document: Json) -> Finished:
        try:
            given = json.dumps(document).encode()
            return await self._finish((str(path),), self._call_environment(call), given)
        except TimeoutError as error:
            raise PluginTimedOut(
                f"The CNI plugin {path} did not finish {call.command} within "
                f"{self.time_limit:g} seconds, and was ended."
            ) from error
        except OSError as error:
            raise PluginFailed(f"The CNI plugin {path} cannot be run: {error.strerror}.") from error

    def _call_environment(self, call: Call) -> dict[str, str]:
        return {
            **_environment(),
            "CNI_COMMAND": call.command,
            "CNI_CONTAINERID": call.container_id,
            "CNI_NETNS": call.netns,
            "CNI_IFNAME": call.interface,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in call.arguments),
            "CNI_PATH": os.pathsep.join(str(directory) for directory in self.directories),
        }

    async def _finish(
        self, command: Sequence[str], environment: Mapping[str, str], given: bytes
    ) -> Finished:
        with self._open_lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            inherited = (lock.fileno(),)
            running = start(command, given=given, environment=environment, inherited=inherited)
        return await finish(running, self.time_limit)

    def _is_free(self) -> bool:
        with self._open_lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _open_lock(self) -> IO[bytes]:
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._lock.open("ab")


def runtime_configuration(plugin: PluginConfiguration, capabilities: Json) -> dict[str, Any]:
    """What the plugin is told of the sandbox: only what it says it is capable of."""
    told = {key: value for key, value in capabilities.items() if key in plugin.capabilities}
    return {"runtimeConfig": told} if told else {}


def is_idle(plugin: PluginConfiguration, capabilities: Json) -> bool:
    """Whether the plugin is known to have nothing to do for a sandbox."""
    capability, reasons = IDLE_WITHOUT.get(plugin.type, ("", frozenset()))
    if not capability or reasons & plugin.document.keys():
        return False
    return capability not in capabilities or capability not in plugin.capabilities


def speaks(spoken: Sequence[str], version: str) -> bool:
    return not spoken or any(parse_version(each) == parse_version(version) for each in spoken)


def _environment() -> dict[str, str]:
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{path}:{_SYSTEM_PATH}" if path else _SYSTEM_PATH}


def _failure(
    network: Network, plugin: PluginConfiguration, call: Call, finished: Finished
) -> WinpodError:
    try:
        document = json.loads(finished.output)
        message = ": ".join(part for part in (document["msg"], document.get("details")) if part)
        code = document.get("code", 0)
    except (ValueError, KeyError, TypeError):
        said = _shown(finished.errors) or _shown(finished.output) or "it said nothing"
        message, code = f"exit code {finished.code}, {said}", 0
    about = f" for sandbox {call.container_id}" if call.container_id else ""
    sentence = (
        f'The CNI plugin {plugin.type} of network "{network.name}" failed at {call.command}'
        f"{about}: {message.rstrip('.')}."
    )
    for pattern, known in _KNOWN:
        if re.search(pattern, message):
            return known(sentence, network, plugin)
    if code in (_TRY_AGAIN, _NOT_AVAILABLE, _LIMITED):
        return PluginNotReady(sentence)
    return PluginFailed(sentence)


def _exhausted(sentence: str, network: Network, _: PluginConfiguration) -> WinpodError:
    return AddressesExhausted(
        sentence, f"Every address of the network is taken: widen its range in {network.source}."
    )


def _bridge_taken(sentence: str, network: Network, plugin: PluginConfiguration) -> WinpodError:
    bridge = plugin.document.get("bridge", "cni0")
    return NetworkConflict(
        sentence,
        f"The bridge was made with another address: remove it with `ip link delete {bridge}`, "
        f"or name another bridge or subnet in {network.source}.",
    )


def _no_iptables(sentence: str, _: Network, __: PluginConfiguration) -> WinpodError:
    return PluginFailed(sentence, "Install Debian's iptables.")


def _other_version(sentence: str, network: Network, _: PluginConfiguration) -> WinpodError:
    return PluginFailed(
        sentence, f"Set cniVersion in {network.source} to a version that every plugin speaks."
    )


_KNOWN: Sequence[tuple[str, Callable[[str, Network, PluginConfiguration], WinpodError]]] = (
    (r"no IP addresses available", _exhausted),
    (r"already has an IP address different from", _bridge_taken),
    (r"ip6?tables.*(executable file not found|no such file)", _no_iptables),
    (r"incompatible CNI versions", _other_version),
)
"""What plugins are known to say, and what to do about it."""


def _shown(output: bytes) -> str:
    return output.decode(errors="replace").strip()[:500]


def _end_holders(lock: Path) -> None:
    """End every other process that has the lock open: plugins that nobody waits for."""
    for directory in Path("/proc").glob("[0-9]*/fd"):
        pid = int(directory.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and any(_same(lock, entry) for entry in directory.iterdir()):
                os.kill(pid, signal.SIGKILL)


def _same(lock: Path, entry: Path) -> bool:
    try:
        return entry.samefile(lock)
    except OSError:
        return False

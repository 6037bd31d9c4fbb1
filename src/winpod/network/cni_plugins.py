"""Execution of CNI plugins: find the binary, run it, parse its result or error.

A plugin keeps running and finishes its work when winpod is killed. Each plugin process inherits a
shared lock on a file for as long as it runs; the next winpod waits for the exclusive lock before it
cleans up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.errors import WinpodError
from winpod.files import FileLock
from winpod.network.attachments import Json
from winpod.network.cni_config import CniNetwork, PluginConfiguration, parse_version
from winpod.network.errors import (
    AddressesExhausted,
    NetworkConflict,
    PluginFailed,
    PluginMissing,
    PluginNotReady,
    PluginTimedOut,
)
from winpod.subprocesses import ProcessResult, run

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
"""Plugins that are skipped for sandboxes without data of a capability, unless their configuration
has one of these keys. Even without port mappings, portmap's DEL runs iptables about twenty times.
"""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TRY_AGAIN, _NOT_AVAILABLE, _LIMITED = 11, 50, 51
_POLL = 0.01


@dataclass(frozen=True)
class PluginCall:
    """One CNI command for a sandbox's interface, or for a network as a whole (STATUS, GC)."""

    command: str
    container_id: str = ""
    netns: str = ""
    interface: str = ""
    arguments: tuple[tuple[str, str], ...] = ()


class CniPlugins:
    def __init__(self, directories: Sequence[Path], lock: Path, time_limit: float) -> None:
        self.directories = tuple(directories)
        self.time_limit = time_limit
        self._lock = lock
        self._versions: dict[tuple[Path, int], tuple[str, ...]] = {}

    def find(self, kind: str, network: CniNetwork) -> Path:
        for directory in self.directories:
            path = directory / kind
            if path.is_file() and os.access(path, os.X_OK):
                return path
        searched = ", ".join(str(directory) for directory in self.directories)
        raise PluginMissing(
            f'The CNI plugin {kind} of network "{network.name}" ({network.source}) '
            f"was not found in {searched}.",
            f"Install Debian's {DEBIAN_PACKAGE}."
            if kind in IN_DEBIAN_PACKAGE
            else "Install it there, or remove it from the configuration.",
        )

    def has_all_plugins(self, network: CniNetwork) -> bool:
        try:
            self.find_all(network)
        except PluginMissing:
            return False
        return True

    def find_all(self, network: CniNetwork) -> list[Path]:
        """Return the path of every plugin of a network, or raise PluginMissing."""
        kinds = [kind for plugin in network.plugins for kind in (plugin.type, plugin.ipam) if kind]
        return [self.find(kind, network) for kind in kinds]

    async def run(
        self,
        network: CniNetwork,
        plugin: PluginConfiguration,
        call: PluginCall,
        extra: Mapping[str, Any],
    ) -> Json:
        """Run a plugin with its configuration plus `extra`, and return its result."""
        path = self.find(plugin.type, network)
        document = {
            **plugin.document,
            "name": network.name,
            "cniVersion": network.version,
            **extra,
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
                f'The CNI plugin {plugin.type} of network "{network.name}" returned a result of '
                f"{call.command} that is not JSON: {_excerpt(finished.output)}"
            ) from error
        return result if isinstance(result, dict) else {}

    async def versions(self, kind: str, network: CniNetwork) -> tuple[str, ...]:
        """Return the CNI versions that a plugin supports, cached per binary."""
        path = self.find(kind, network)
        key = (path, path.stat().st_mtime_ns)
        if key not in self._versions:
            finished = await self._run(path, PluginCall("VERSION"), {"cniVersion": network.version})
            try:
                supported = json.loads(finished.output)["supportedVersions"]
            except (ValueError, KeyError, TypeError):
                supported = []
            self._versions[key] = tuple(supported)
        return self._versions[key]

    async def run_tool(self, *command: str, given: str = "") -> ProcessResult:
        """Run a host program such as iptables under the same lock and time limit."""
        return await self._finish(command, _environment(), given.encode())

    async def wait_for_orphans(self) -> None:
        """Wait for plugins of a killed winpod process, and kill those past the time limit."""
        deadline = time.monotonic() + self.time_limit
        while FileLock.is_held(self._lock):
            if time.monotonic() > deadline:
                _kill_lock_holders(self._lock)
            await asyncio.sleep(_POLL)

    async def _run(self, path: Path, call: PluginCall, document: Json) -> ProcessResult:
        try:
            given = json.dumps(document).encode()
            return await self._finish((str(path),), self._call_environment(call), given)
        except TimeoutError as error:
            raise PluginTimedOut(
                f"The CNI plugin {path} did not finish {call.command} within "
                f"{self.time_limit:g} seconds and was killed."
            ) from error
        except OSError as error:
            raise PluginFailed(f"The CNI plugin {path} cannot be run: {error.strerror}.") from error

    def _call_environment(self, call: PluginCall) -> dict[str, str]:
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
    ) -> ProcessResult:
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock.acquire(self._lock, shared=True) as lock:
            async with asyncio.timeout(self.time_limit):
                return await run(command, stdin=given, env=environment, pass_fds=(lock.descriptor,))


def runtime_config(plugin: PluginConfiguration, capabilities: Json) -> dict[str, Any]:
    """Return the runtimeConfig of a plugin: the capability arguments that it declares."""
    config = {key: value for key, value in capabilities.items() if key in plugin.capabilities}
    return {"runtimeConfig": config} if config else {}


def has_nothing_to_do(plugin: PluginConfiguration, capabilities: Json) -> bool:
    """Return whether a plugin would do nothing for a sandbox with these capability arguments."""
    capability, overrides = IDLE_WITHOUT.get(plugin.type, ("", frozenset()))
    if not capability or overrides & plugin.document.keys():
        return False
    return capability not in capabilities or capability not in plugin.capabilities


def supports_version(supported: Sequence[str], version: str) -> bool:
    return not supported or any(parse_version(each) == parse_version(version) for each in supported)


def _environment() -> dict[str, str]:
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{path}:{_SYSTEM_PATH}" if path else _SYSTEM_PATH}


def _failure(
    network: CniNetwork, plugin: PluginConfiguration, call: PluginCall, finished: ProcessResult
) -> WinpodError:
    try:
        document = json.loads(finished.output)
        message = ": ".join(part for part in (document["msg"], document.get("details")) if part)
        code = document.get("code", 0)
    except (ValueError, KeyError, TypeError):
        output = _excerpt(finished.errors) or _excerpt(finished.output) or "no output"
        message, code = f"exit code {finished.code}, {output}", 0
    sandbox = f" for sandbox {call.container_id}" if call.container_id else ""
    sentence = (
        f'The CNI plugin {plugin.type} of network "{network.name}" failed at {call.command}'
        f"{sandbox}: {message.rstrip('.')}."
    )
    for pattern, make_error in _KNOWN_FAILURES:
        if re.search(pattern, message):
            return make_error(sentence, network, plugin)
    if code in (_TRY_AGAIN, _NOT_AVAILABLE, _LIMITED):
        return PluginNotReady(sentence)
    return PluginFailed(sentence)


def _exhausted(sentence: str, network: CniNetwork, _: PluginConfiguration) -> WinpodError:
    return AddressesExhausted(
        sentence, f"Every address of the network is in use: widen its range in {network.source}."
    )


def _bridge_conflict(
    sentence: str, network: CniNetwork, plugin: PluginConfiguration
) -> WinpodError:
    bridge = plugin.document.get("bridge", "cni0")
    return NetworkConflict(
        sentence,
        f"The bridge has another address: remove it with `ip link delete {bridge}`, "
        f"or configure another bridge or subnet in {network.source}.",
    )


def _no_iptables(sentence: str, _: CniNetwork, __: PluginConfiguration) -> WinpodError:
    return PluginFailed(sentence, "Install Debian's iptables.")


def _unsupported_version(sentence: str, network: CniNetwork, _: PluginConfiguration) -> WinpodError:
    return PluginFailed(
        sentence, f"Set cniVersion in {network.source} to a version that every plugin supports."
    )


_ErrorFactory = Callable[[str, CniNetwork, PluginConfiguration], WinpodError]
_KNOWN_FAILURES: Sequence[tuple[str, _ErrorFactory]] = (
    (r"no IP addresses available", _exhausted),
    (r"already has an IP address different from", _bridge_conflict),
    (r"ip6?tables.*(executable file not found|no such file)", _no_iptables),
    (r"incompatible CNI versions", _unsupported_version),
)
"""Error messages of the upstream plugins, and the error with advice for each."""


def _excerpt(output: bytes) -> str:
    return output.decode(errors="replace").strip()[:500]


def _kill_lock_holders(lock: Path) -> None:
    """Kill every other process that has the lock file open: orphaned plugins."""
    for directory in Path("/proc").glob("[0-9]*/fd"):
        pid = int(directory.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and any(
                _is_same_file(lock, entry) for entry in directory.iterdir()
            ):
                os.kill(pid, signal.SIGKILL)


def _is_same_file(lock: Path, entry: Path) -> bool:
    try:
        return entry.samefile(lock)
    except OSError:
        return False

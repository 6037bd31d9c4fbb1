"""CNI 1.1 runtime: attach sandboxes to the configured network by running its plugin chain.

The cache uses libcni's location and format. An entry is written before the first plugin runs and
removed after the last DEL, so a crash never leaves an interface, lease or rule that `delete` or
`remove_unknown` cannot find. DEL runs with the configuration cached at ADD. Calls for one sandbox
are serialised; calls for different sandboxes run in parallel.

This module also manages iptables rules: one masquerade rule per subnet, and the per-sandbox rules
that the bridge and ptp plugins leak when the namespace or interface is already gone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import itertools
import json
import logging
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from winpod.concurrency import KeyedLock
from winpod.config import DEFAULT_BRIDGE, DEFAULT_SUBNETS
from winpod.errors import WinpodError
from winpod.labels import CNI_ADDED_KEY
from winpod.network.attachments import (
    Attachment,
    AttachResult,
    Json,
    capability_arguments,
    cni_arguments,
    read_result,
)
from winpod.network.cni_config import (
    DEFAULT_FILE,
    DEFAULT_LEASES,
    CniConfigDirectory,
    CniNetwork,
    PluginConfiguration,
    default_network,
    network_text,
    parse_network,
    write_network,
)
from winpod.network.cni_plugins import (
    DEFAULT_TIME_LIMIT,
    CniPlugins,
    PluginCall,
    has_nothing_to_do,
    runtime_config,
    supports_version,
)
from winpod.network.errors import (
    AlreadyConnected,
    CacheUnwritable,
    NoCniConfig,
    NotConnected,
    PluginFailed,
)
from winpod.network.netns import has_interface, is_namespace

_KIND = "cniCacheV1"


@dataclass(frozen=True)
class CniCacheEntry:
    """One cached attachment.

    `added` is the number of plugins whose ADD succeeded, stored under a winpod-specific key; None
    if another runtime wrote the entry.
    """

    network: str
    container_id: str
    interface: str
    netns: str
    config: bytes
    arguments: tuple[tuple[str, str], ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    result: Json | None = None
    added: int | None = None

    @property
    def file_name(self) -> str:
        return f"{self.network}-{self.container_id}-{self.interface}"


class CniCache:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._results = directory / "results"

    def write(self, entry: CniCacheEntry) -> None:
        temporary = self.directory / f".{entry.file_name}"
        try:
            self._results.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(_encode(entry))
            temporary.replace(self._results / entry.file_name)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise CacheUnwritable(
                f"Sandbox {entry.container_id} cannot be connected: the CNI cache "
                f"{self.directory} cannot be written: {error.strerror}."
            ) from error

    def remove(self, entry: CniCacheEntry) -> None:
        (self._results / entry.file_name).unlink(missing_ok=True)

    def find(self, container_id: str) -> list[CniCacheEntry]:
        paths = self._results.glob(f"*-{container_id}-*")
        entries = (_decode(path) for path in sorted(paths))
        return [entry for entry in entries if entry and entry.container_id == container_id]

    def entries(self) -> list[CniCacheEntry]:
        return [entry for path in self._paths() if (entry := _decode(path))]

    def unreadable(self) -> list[str]:
        """Return the names of entries whose content was lost, for example in a power failure."""
        return [path.name for path in self._paths() if _decode(path) is None]

    def remove_temporary_files(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in self.directory.iterdir():
                if path.name.startswith("."):
                    path.unlink(missing_ok=True)

    def _paths(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            yield from sorted(self._results.iterdir())


def _encode(entry: CniCacheEntry) -> bytes:
    document: dict[str, Any] = {
        "kind": _KIND,
        "containerId": entry.container_id,
        "config": base64.b64encode(entry.config).decode(),
        "ifName": entry.interface,
        "networkName": entry.network,
        "netns": entry.netns,
        "cniArgs": entry.arguments,
        "capabilityArgs": entry.capabilities,
    }
    if entry.result is not None:
        document["result"] = entry.result
    if entry.added is not None:
        document[CNI_ADDED_KEY] = entry.added
    return json.dumps(document).encode()


def _decode(path: Path) -> CniCacheEntry | None:
    try:
        document = json.loads(path.read_bytes())
        if document["kind"] != _KIND:
            return None
        return CniCacheEntry(
            network=document["networkName"],
            container_id=document["containerId"],
            interface=document["ifName"],
            netns=document.get("netns", ""),
            config=base64.b64decode(document["config"]),
            arguments=tuple((key, value) for key, value in document.get("cniArgs") or ()),
            capabilities=document.get("capabilityArgs") or {},
            result=document.get("result"),
            added=document.get(CNI_ADDED_KEY),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


_FAMILIES = {4: "iptables", 6: "ip6tables"}
_SANDBOX_CHAIN = re.compile(r"CNI-(DN-)?[0-9a-f]+")


async def masquerade(plugins: CniPlugins, network: CniNetwork) -> None:
    """Add a masquerade rule per subnet for traffic that leaves the pod or cluster network."""
    for subnet in network.subnets:
        version = ipaddress.ip_network(subnet, strict=False).version
        table = (_FAMILIES[version], "--wait", "--table", "nat")
        comment = ("-m", "comment", "--comment", f"winpod network {network.name}")
        internal = network.cluster or subnet
        target = ("!", "--destination", internal, *comment, "-j", "MASQUERADE")
        rule = ("POSTROUTING", "--source", subnet, *target)
        try:
            if (await plugins.run_tool(*table, "--check", *rule)).code == 0:
                continue
            result = await plugins.run_tool(*table, "--append", *rule)
        except FileNotFoundError as error:
            raise PluginFailed(
                f'Failed to masquerade pods of network "{network.name}": '
                f"{_FAMILIES[version]} is not installed.",
                "Install Debian's iptables.",
            ) from error
        if result.code != 0:
            raise PluginFailed(
                f'Failed to masquerade pods of network "{network.name}": '
                f"{result.errors.decode(errors='replace').strip()}."
            )


async def remove_rules(plugins: CniPlugins, network: str, container_id: str) -> None:
    """Remove every rule and chain whose comment names this sandbox and network.

    The bridge and ptp plugins look up a pod's masquerade rules by the addresses of its interface,
    so they leave them behind once the namespace or interface is gone.
    """
    marker = f'name: "{network}" id: "{container_id}"'
    for tool in _FAMILIES.values():
        try:
            saved = await plugins.run_tool(f"{tool}-save", "--table", "nat")
        except FileNotFoundError:
            continue
        script = _removal_script(saved.output.decode(errors="replace"), marker)
        if script:
            removed = await plugins.run_tool(f"{tool}-restore", "--noflush", "--wait", given=script)
            if removed.code != 0:
                raise PluginFailed(
                    f"Packet filter rules of sandbox {container_id} cannot be removed: "
                    f"{removed.errors.decode(errors='replace').strip()}."
                )


def _removal_script(saved: str, marker: str) -> str:
    """Return iptables-restore input that deletes the marked rules and the chains they jump to."""
    rules, chains = [], []
    for line in saved.splitlines():
        words = shlex.split(line) if line.startswith("-A ") else []
        if any(marker in word for word in words):
            rules.append("-D " + line.removeprefix("-A "))
            chains += [
                target
                for flag, target in itertools.pairwise(words)
                if flag == "-j" and _SANDBOX_CHAIN.fullmatch(target)
            ]
    removals = [line for chain in dict.fromkeys(chains) for line in (f"-F {chain}", f"-X {chain}")]
    return "\n".join(["*nat", *rules, *removals, "COMMIT", ""]) if rules else ""


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CniReady:
    network: str


@dataclass(frozen=True)
class CniNotReady:
    reason: str


class Cni:
    """CNI runtime of one winpod instance.

    `cache_dir` must not be shared with other runtimes: `remove_unknown` deletes every attachment
    in it whose sandbox this runtime does not list.
    """

    def __init__(
        self,
        conf_dir: Path,
        bin_dirs: Sequence[Path],
        cache_dir: Path,
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
    ) -> None:
        self._directory = CniConfigDirectory(conf_dir)
        self._plugins = CniPlugins(bin_dirs, cache_dir / "lock", time_limit)
        self._cache = CniCache(cache_dir)
        self._locks = KeyedLock(asyncio.Lock)
        self._masqueraded: set[bytes] = set()
        self._masquerading = asyncio.Lock()

    @property
    def directory(self) -> Path:
        """CNI configuration directory."""
        return self._directory.path

    async def status(self) -> CniReady | CniNotReady:
        """Return whether sandboxes can be connected, with the reason if not."""
        try:
            network = self._directory.network()
            for plugin in network.plugins:
                await self._verify_version(network, plugin.type)
                if plugin.ipam:
                    await self._verify_version(network, plugin.ipam)
            if network.supports_version(1, 1):
                for plugin in network.plugins:
                    await self._plugins.run(network, plugin, PluginCall("STATUS"), {})
        except WinpodError as error:
            return CniNotReady(str(error))
        return CniReady(network.name)

    async def add(self, attachment: Attachment) -> AttachResult:
        """Connect a sandbox; on failure run DEL for the plugins that were called."""
        async with self._locks.lock(attachment.sandbox_id):
            if self._cache.find(attachment.sandbox_id):
                raise AlreadyConnected(f"Sandbox {attachment.sandbox_id} is connected already.")
            network = self._directory.network()
            entry = replace(_entry(network, attachment), added=0)
            self._cache.write(entry)
            try:
                entry = await self._add(network, entry)
            except BaseException:
                await self._roll_back(attachment)
                raise
            return read_result(network.name, attachment.interface, entry.result or {})

    async def check(self, attachment: Attachment) -> None:
        """Run CHECK of every plugin and raise the first error."""
        async with self._locks.lock(attachment.sandbox_id):
            entries = self._cache.find(attachment.sandbox_id)
            if not entries:
                raise NotConnected(f"Sandbox {attachment.sandbox_id} is not connected.")
            for entry in entries:
                network = _network_of(entry)
                if network.check and network.supports_version(0, 4):
                    for plugin in network.plugins:
                        if not has_nothing_to_do(plugin, entry.capabilities):
                            extra = _extra_config(plugin, entry)
                            call = _call("CHECK", entry, attachment.netns)
                            await self._plugins.run(network, plugin, call, extra)

    async def delete(self, attachment: Attachment) -> None:
        """Disconnect a sandbox. Idempotent, also if parts of it are already gone."""
        async with self._locks.lock(attachment.sandbox_id):
            entries = self._cache.find(attachment.sandbox_id)
            if not entries and has_interface(attachment.netns, attachment.interface):
                entries = [_entry(self._directory.network(), attachment)]  # cache entry was lost
            for entry in entries:
                await self._delete(entry, attachment.netns)

    async def remove_unknown(self, known: Collection[str]) -> list[str]:
        """Delete the attachments of sandboxes that are not in `known`.

        Call it at start, before any other method: it waits for plugins that a killed process left
        running. Attachments that cannot be deleted stay cached for the next start; the returned
        messages say why.
        """
        await self._plugins.wait_for_orphans()
        self._cache.remove_temporary_files()
        stale = [entry for entry in self._cache.entries() if entry.container_id not in known]
        failures = await asyncio.gather(*(self._delete_stale(entry) for entry in stale))
        for name in self._cache.unreadable():
            failures.append(await self._delete_unreadable(name, known))
        failures.append(await self._collect(known))
        return [failure for failure in failures if failure]

    def write_default(
        self,
        subnets: Sequence[IPv4Network | IPv6Network] = DEFAULT_SUBNETS,
        *,
        bridge: str = DEFAULT_BRIDGE,
        leases: Path = DEFAULT_LEASES,
    ) -> Path | None:
        """Write the default configuration if there is none and its plugins are installed."""
        document = default_network(subnets, bridge=bridge, leases=leases)
        if self._directory.files() or not self._plugins.has_all_plugins(_parse_default(document)):
            return None
        return write_network(self._directory.path, document)

    def find_plugins(self) -> list[Path]:
        """Return the plugins of the configured network, or of the default one if there is none."""
        is_configured = bool(self._directory.files())
        network = self._directory.network() if is_configured else _parse_default(default_network())
        return self._plugins.find_all(network)

    def write_node_network(
        self,
        subnets: Sequence[IPv4Network | IPv6Network],
        *,
        bridge: str,
        leases: Path,
        cluster: IPv4Network | IPv6Network | None,
    ) -> Path | None:
        """Write the network of the node's pod CIDRs, replacing only a configuration of winpod.

        Connected pods keep their addresses; the bridge gets a new one.
        """
        files = self._directory.files()
        if files and files[0].name != DEFAULT_FILE:
            return None
        document = default_network(subnets, bridge=bridge, leases=leases, cluster=cluster)
        document["plugins"][0]["forceAddress"] = True
        if files and files[0].read_text() == network_text(document):
            return None
        return write_network(self._directory.path, document)

    async def _add(self, network: CniNetwork, entry: CniCacheEntry) -> CniCacheEntry:
        if network.masquerade:
            async with self._masquerading:
                if network.data not in self._masqueraded:
                    await masquerade(self._plugins, network)
                    self._masqueraded.add(network.data)
        return await self._add_in_order(network, entry)

    async def _add_in_order(self, network: CniNetwork, entry: CniCacheEntry) -> CniCacheEntry:
        call = _call("ADD", entry, Path(entry.netns))
        for number, plugin in enumerate(network.plugins, start=1):
            if not has_nothing_to_do(plugin, entry.capabilities):
                extra = _extra_config(plugin, entry)
                result = await self._plugins.run(network, plugin, call, extra)
                entry = replace(entry, result=result, added=number)
                self._cache.write(entry)
        return entry

    async def _roll_back(self, attachment: Attachment) -> None:
        for entry in self._cache.find(attachment.sandbox_id):
            try:
                await self._delete(entry, attachment.netns)
            except WinpodError as error:
                _log.warning(
                    "Failed to roll back CNI ADD, sandbox %s: %s", attachment.sandbox_id, error
                )

    async def _delete(self, entry: CniCacheEntry, netns: Path) -> None:
        """Run DEL in reverse order, ignoring errors of plugins whose ADD did not complete."""
        network = _network_of(entry)
        plugins_find_rules = has_interface(netns, entry.interface)
        added = len(network.plugins) if entry.added is None else entry.added
        call = _call("DEL", entry, netns)
        sent = entry if network.supports_version(0, 4) else replace(entry, result=None)
        for number, plugin in reversed(list(enumerate(network.plugins))):
            if has_nothing_to_do(plugin, entry.capabilities):
                continue
            try:
                await self._plugins.run(network, plugin, call, _extra_config(plugin, sent))
            except WinpodError:
                if number < added:
                    raise
        if not plugins_find_rules:
            await remove_rules(self._plugins, network.name, entry.container_id)
        self._cache.remove(entry)

    async def _delete_stale(self, entry: CniCacheEntry) -> str:
        try:
            async with self._locks.lock(entry.container_id):
                await self._delete(entry, Path(entry.netns))
        except WinpodError as error:
            return str(error)
        return ""

    async def _delete_unreadable(self, name: str, known: Collection[str]) -> str:
        """Delete an attachment by the file name of its entry: network, sandbox, interface."""
        try:
            network = self._directory.network()
        except NoCniConfig as error:
            return str(error)
        sandbox, _, interface = name.removeprefix(f"{network.name}-").rpartition("-")
        if not name.startswith(f"{network.name}-") or not sandbox or sandbox in known:
            return ""
        return await self._delete_stale(
            CniCacheEntry(network.name, sandbox, interface, "", network.data, added=0)
        )

    async def _collect(self, known: Collection[str]) -> str:
        """Run CNI 1.1 GC, which frees the plugins' resources of all other sandboxes."""
        try:
            network = self._directory.network()
            if not network.collect or not network.supports_version(1, 1):
                return ""
            valid = [
                {"containerID": entry.container_id, "ifname": entry.interface}
                for entry in self._cache.entries()
                if entry.network == network.name and entry.container_id in known
            ]
            extra = {"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
            for plugin in network.plugins:
                await self._plugins.run(network, plugin, PluginCall("GC"), extra)
        except NoCniConfig:
            return ""
        except WinpodError as error:
            return str(error)
        return ""

    async def _verify_version(self, network: CniNetwork, kind: str) -> None:
        supported = await self._plugins.versions(kind, network)
        if not supports_version(supported, network.version):
            raise NoCniConfig(
                f"The CNI plugin {kind} does not support version {network.version}, "
                f"which {network.source} requires.",
                f"It supports {', '.join(supported)}.",
            )


def _entry(network: CniNetwork, attachment: Attachment) -> CniCacheEntry:
    return CniCacheEntry(
        network=network.name,
        container_id=attachment.sandbox_id,
        interface=attachment.interface,
        netns=str(attachment.netns),
        config=network.data,
        arguments=cni_arguments(attachment),
        capabilities=capability_arguments(attachment),
    )


def _network_of(entry: CniCacheEntry) -> CniNetwork:
    """Parse the configuration the sandbox was connected with."""
    return parse_network(entry.config, f"cached for {entry.container_id}")


def _call(command: str, entry: CniCacheEntry, netns: Path) -> PluginCall:
    return PluginCall(
        command=command,
        container_id=entry.container_id,
        netns=str(netns) if is_namespace(netns) else "",
        interface=entry.interface,
        arguments=entry.arguments,
    )


def _extra_config(plugin: PluginConfiguration, entry: CniCacheEntry) -> dict[str, Any]:
    config = runtime_config(plugin, entry.capabilities)
    return {**config, "prevResult": entry.result} if entry.result is not None else config


def _parse_default(document: dict[str, Any]) -> CniNetwork:
    return parse_network(json.dumps(document).encode(), DEFAULT_FILE)

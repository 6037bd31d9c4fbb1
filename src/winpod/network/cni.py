"""CNI 1.1: connect sandboxes to the network of a configuration, by its plugins in their order.

An entry in the cache exists from before the first plugin runs until the last one has cleaned up, so
no crash leaves an interface, a lease or a rule that a later `delete` or `sweep` would not find. A
sandbox is taken apart with the configuration it was connected with. Calls for one sandbox run one
after the other, those for different ones at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from winpod.network.attachments import (
    Attached,
    Attachment,
    capability_arguments,
    cni_arguments,
    read_result,
)
from winpod.network.cache import Cache, Entry
from winpod.network.configuration import (
    DEFAULT_BRIDGE,
    DEFAULT_FILE,
    DEFAULT_LEASES,
    DEFAULT_SUBNETS,
    Directory,
    Network,
    PluginConfiguration,
    default_network,
    network_text,
    parse_network,
    write_network,
)
from winpod.network.errors import AlreadyConnected, NoNetwork, NotConnected
from winpod.network.namespaces import has_interface, is_namespace
from winpod.network.plugins import (
    DEFAULT_TIME_LIMIT,
    Call,
    Plugins,
    is_idle,
    runtime_configuration,
    speaks,
)
from winpod.network.rules import masquerade, remove_rules
from winpod.windows.errors import WinpodError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ready:
    network: str


@dataclass(frozen=True)
class NotReady:
    reason: str


@dataclass
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class Cni:
    """`cache_dir` is of this runtime alone: what is in it and unknown to it is swept away."""

    def __init__(
        self,
        conf_dir: Path,
        bin_dirs: Sequence[Path],
        cache_dir: Path,
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
    ) -> None:
        self._directory = Directory(conf_dir)
        self._plugins = Plugins(bin_dirs, cache_dir / "lock", time_limit)
        self._cache = Cache(cache_dir)
        self._turns: dict[str, _Turn] = {}
        self._masqueraded: set[bytes] = set()
        self._masquerading = asyncio.Lock()

    @property
    def directory(self) -> Path:
        """Where the configurations are."""
        return self._directory.path

    async def status(self) -> Ready | NotReady:
        """Whether a sandbox could be connected now, and if not, why."""
        try:
            network = self._directory.network()
            for plugin in network.plugins:
                await self._verify_version(network, plugin.type)
                if plugin.ipam:
                    await self._verify_version(network, plugin.ipam)
            if network.speaks(1, 1):
                for plugin in network.plugins:
                    await self._plugins.run(network, plugin, Call("STATUS"), {})
        except WinpodError as error:
            return NotReady(str(error))
        return Ready(network.name)

    async def add(self, attachment: Attachment) -> Attached:
        """Connect a sandbox; where that fails half way, take apart what was made of it."""
        async with self._turn(attachment.sandbox_id):
            if self._cache.of(attachment.sandbox_id):
                raise AlreadyConnected(f"Sandbox {attachment.sandbox_id} is connected already.")
            network = self._directory.network()
            entry = replace(_entry(network, attachment), added=0)
            self._cache.write(entry)
            try:
                entry = await self._add(network, entry)
            except BaseException:
                await self._take_back(attachment)
                raise
            return read_result(network.name, attachment.interface, entry.result or {})

    async def check(self, attachment: Attachment) -> None:
        """Raise what a plugin finds wrong with a connection."""
        async with self._turn(attachment.sandbox_id):
            entries = self._cache.of(attachment.sandbox_id)
            if not entries:
                raise NotConnected(f"Sandbox {attachment.sandbox_id} is not connected.")
            for entry in entries:
                network = _network_of(entry)
                if network.check and network.speaks(0, 4):
                    for plugin in network.plugins:
                        if not is_idle(plugin, entry.capabilities):
                            further = _further(plugin, entry)
                            call = _call("CHECK", entry, attachment.netns)
                            await self._plugins.run(network, plugin, call, further)

    async def delete(self, attachment: Attachment) -> None:
        """Take a sandbox apart. Any number of times, and whatever of it is gone already."""
        async with self._turn(attachment.sandbox_id):
            entries = self._cache.of(attachment.sandbox_id)
            if not entries and has_interface(attachment.netns, attachment.interface):
                entries = [_entry(self._directory.network(), attachment)]  # its own was lost
            for entry in entries:
                await self._delete(entry, attachment.netns)

    async def sweep(self, known: Collection[str]) -> list[str]:
        """Take apart every connection of a sandbox that is not known any more.

        To be called at start, before anything else: it waits for plugins that a killed process
        left running. What cannot be taken apart is kept for the next time; the sentences say why.
        """
        await self._plugins.wait_for_orphans()
        self._cache.discard_unfinished()
        stale = [entry for entry in self._cache.entries() if entry.container_id not in known]
        troubles = await asyncio.gather(*(self._sweep(entry) for entry in stale))
        for name in self._cache.unreadable():
            troubles.append(await self._sweep_unreadable(name, known))
        troubles.append(await self._collect(known))
        return [trouble for trouble in troubles if trouble]

    def write_default(
        self,
        subnets: Sequence[IPv4Network | IPv6Network] = DEFAULT_SUBNETS,
        *,
        bridge: str = DEFAULT_BRIDGE,
        leases: Path = DEFAULT_LEASES,
    ) -> Path | None:
        """The default network's configuration, where there is none and its plugins are there."""
        document = default_network(subnets, bridge=bridge, leases=leases)
        network = parse_network(json.dumps(document).encode(), DEFAULT_FILE)
        if self._directory.files() or not self._plugins.has_all(network):
            return None
        return write_network(self._directory.path, document)

    def write_told(
        self,
        subnets: Sequence[IPv4Network | IPv6Network],
        *,
        bridge: str,
        leases: Path,
        cluster: IPv4Network | IPv6Network | None,
    ) -> Path | None:
        """The network of subnets that were told, in place of the last that was; never of others'.

        Pods that are connected keep what they have; the bridge gets its new address.
        """
        files = self._directory.files()
        if files and files[0].name != DEFAULT_FILE:
            return None
        document = default_network(subnets, bridge=bridge, leases=leases, cluster=cluster)
        document["plugins"][0]["forceAddress"] = True
        if files and files[0].read_text() == network_text(document):
            return None
        return write_network(self._directory.path, document)

    async def _add(self, network: Network, entry: Entry) -> Entry:
        if network.masquerade:
            async with self._masquerading:
                if network.data not in self._masqueraded:
                    await masquerade(self._plugins, network)
                    self._masqueraded.add(network.data)
        return await self._add_in_order(network, entry)

    async def _add_in_order(self, network: Network, entry: Entry) -> Entry:
        call = _call("ADD", entry, Path(entry.netns))
        for number, plugin in enumerate(network.plugins, start=1):
            if not is_idle(plugin, entry.capabilities):
                result = await self._plugins.run(network, plugin, call, _further(plugin, entry))
                entry = replace(entry, result=result, added=number)
                self._cache.write(entry)
        return entry

    async def _take_back(self, attachment: Attachment) -> None:
        for entry in self._cache.of(attachment.sandbox_id):
            try:
                await self._delete(entry, attachment.netns)
            except WinpodError as error:
                _log.warning("What was made of a sandbox's network is still there. %s", error)

    async def _delete(self, entry: Entry, netns: Path) -> None:
        """The plugins' DEL in reverse. One that never got to connect the sandbox may fail at it."""
        network = _network_of(entry)
        knows_its_rules = has_interface(netns, entry.interface)
        added = len(network.plugins) if entry.added is None else entry.added
        call = _call("DEL", entry, netns)
        known = entry if network.speaks(0, 4) else replace(entry, result=None)
        for number, plugin in reversed(list(enumerate(network.plugins))):
            if is_idle(plugin, entry.capabilities):
                continue
            try:
                await self._plugins.run(network, plugin, call, _further(plugin, known))
            except WinpodError:
                if number < added:
                    raise
        if not knows_its_rules:
            await remove_rules(self._plugins, network.name, entry.container_id)
        self._cache.remove(entry)

    async def _sweep(self, entry: Entry) -> str:
        try:
            async with self._turn(entry.container_id):
                await self._delete(entry, Path(entry.netns))
        except WinpodError as error:
            return str(error)
        return ""

    async def _sweep_unreadable(self, name: str, known: Collection[str]) -> str:
        """An entry of which only the file's name is left: network, sandbox, interface."""
        try:
            network = self._directory.network()
        except NoNetwork as error:
            return str(error)
        sandbox, _, interface = name.removeprefix(f"{network.name}-").rpartition("-")
        if not name.startswith(f"{network.name}-") or not sandbox or sandbox in known:
            return ""
        return await self._sweep(Entry(network.name, sandbox, interface, "", network.data, added=0))

    async def _collect(self, known: Collection[str]) -> str:
        """GC, by which plugins of CNI 1.1 let go of all that belongs to none of the known."""
        try:
            network = self._directory.network()
            if not network.collect or not network.speaks(1, 1):
                return ""
            valid = [
                {"containerID": entry.container_id, "ifname": entry.interface}
                for entry in self._cache.entries()
                if entry.network == network.name and entry.container_id in known
            ]
            further = {"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
            for plugin in network.plugins:
                await self._plugins.run(network, plugin, Call("GC"), further)
        except NoNetwork:
            return ""
        except WinpodError as error:
            return str(error)
        return ""

    async def _verify_version(self, network: Network, kind: str) -> None:
        spoken = await self._plugins.versions(kind, network)
        if not speaks(spoken, network.version):
            raise NoNetwork(
                f"The CNI plugin {kind} does not speak version {network.version}, "
                f"which {network.source} asks for.",
                f"It speaks {', '.join(spoken)}.",
            )

    @contextlib.asynccontextmanager
    async def _turn(self, sandbox_id: str) -> AsyncIterator[None]:
        """One call at a time for a sandbox."""
        turn = self._turns.setdefault(sandbox_id, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._turns.pop(sandbox_id, None)


def _entry(network: Network, attachment: Attachment) -> Entry:
    return Entry(
        network=network.name,
        container_id=attachment.sandbox_id,
        interface=attachment.interface,
        netns=str(attachment.netns),
        config=network.data,
        arguments=cni_arguments(attachment),
        capabilities=capability_arguments(attachment),
    )


def _network_of(entry: Entry) -> Network:
    """The network as it was when the sandbox was connected."""
    return parse_network(entry.config, f"cached for {entry.container_id}")


def _call(command: str, entry: Entry, netns: Path) -> Call:
    return Call(
        command=command,
        container_id=entry.container_id,
        netns=str(netns) if is_namespace(netns) else "",
        interface=entry.interface,
        arguments=entry.arguments,
    )


def _further(plugin: PluginConfiguration, entry: Entry) -> dict[str, Any]:
    told = runtime_configuration(plugin, entry.capabilities)
    return {**told, "prevResult": entry.result} if entry.result is not None else told

"""The runtime of this machine, put together: one process has it at a time.

A simulated one needs no Wine base, no root and no network, and its containers end with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from winpod.compute.backend import Backend
from winpod.compute.house import House
from winpod.compute.hypervisor.accelerator import Accelerator, is_emulation_allowed
from winpod.compute.hypervisor.house import GuestHouse
from winpod.compute.hypervisor.template import Templates
from winpod.compute.shell_house import ShellHouse
from winpod.compute.shells import Shells
from winpod.compute.simulated import SimulatedBackend
from winpod.compute.wine import WineBackend
from winpod.cri.sandboxes import Networks
from winpod.cri.server import Parts, Server
from winpod.cri.serving import IDLE_SECONDS, own_directory, read_serving
from winpod.cri.settings import SOCKET, Compute, HypervisorSettings, RuntimeSettings
from winpod.cri.state import State
from winpod.images.base import Base, find_base
from winpod.images.pull import Puller
from winpod.images.settings import ImageSettings
from winpod.images.store import Store
from winpod.images.store_lock import FileLock
from winpod.network.cni import Cni
from winpod.network.configuration import Directory
from winpod.network.namespaces import Namespaces
from winpod.network.sandboxes import SandboxNetworks
from winpod.network.settings import NetworkSettings
from winpod.network.simulated import SimulatedNetworks
from winpod.windows.builds import Build
from winpod.windows.errors import NotFound, PermissionDenied, Unavailable
from winpod.windows.handlers import KNOWN, Handlers
from winpod.windows.isolation import Isolation

_log = logging.getLogger(__name__)

__all__ = ["SOCKET", "Place", "RuntimeBusy", "assembled"]
_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where a runtime keeps what it has, and what it is made with.

    Several runtimes of a machine have a root each and one place of content: images, base, and the
    addresses that are taken on the bridge that their pods share.
    """

    root: Path
    host: Build
    images: ImageSettings = field(default_factory=ImageSettings)
    handlers: Handlers = KNOWN
    network: NetworkSettings = field(default_factory=NetworkSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    hypervisor: HypervisorSettings = field(default_factory=HypervisorSettings)
    shared: Path | None = None

    @property
    def content(self) -> Path:
        return self.shared or self.root

    @property
    def own(self) -> Path:
        return own_directory(self.root)

    @property
    def is_simulated(self) -> bool:
        return self.runtime.compute is Compute.SIMULATED


class RuntimeBusy(Unavailable):
    """Somebody else has the runtime's state open."""


@asynccontextmanager
async def assembled(place: Place) -> AsyncIterator[Server]:
    """All of it; waits a little for a runtime that is just ending."""
    base = None if place.is_simulated else _base_for_root(place)
    try:
        place.own.mkdir(parents=True, exist_ok=True)
        lock = await _locked(place)
    except PermissionError:
        raise PermissionDenied(
            f"{place.own} cannot be written by this user.", "Use sudo, or choose another --root."
        ) from None
    try:
        made = _real(place, base) if base else _simulated(place)
        backend, networks, accelerator = made
        state = State(place.own / "state.db")
        with Store(place.content, host=place.host, handlers=place.handlers) as store:
            async with Puller(store, place.images) as puller:
                yield Server(
                    Parts(
                        state,
                        store,
                        puller,
                        backend,
                        networks,
                        place.host,
                        place.handlers,
                        accelerator,
                    )
                )
        state.close()
    finally:
        lock.release()


async def _locked(place: Place) -> FileLock:
    for _ in range(_PATIENCE * 20):
        if lock := FileLock.try_take(place.own / "lock"):
            return lock
        await asyncio.sleep(0.05)
    serving = read_serving(place.root)
    who = f"the process {serving.process}" if serving else "another process"
    raise RuntimeBusy(
        f"{place.root} has a runtime already, {who}.",
        "Use it, or end it first: one that a command started in the background ends by itself "
        f"after {IDLE_SECONDS} seconds without work.",
    )


_Made = tuple[Backend, Networks, Accelerator | None]


def _simulated(place: Place) -> _Made:
    return SimulatedBackend(), SimulatedNetworks(place.network.subnets), None


def _base_for_root(place: Place) -> Base:
    base = find_base(place.content)
    if base is None:
        raise NotFound(
            f"There is no Wine base in {place.content}, and no Windows program runs without one.",
            "Build it, once: winpod base build",
        )
    if os.geteuid() != 0:
        raise PermissionDenied(
            "Windows containers are made of mounts, networks and control groups, which only root "
            "can make.",
            "Use sudo, or have root start `winpod runtime`.",
        )
    return base


def _real(place: Place, base: Base) -> _Made:
    networks = _networks(place)
    netns = networks.namespaces.path
    shells = Shells(place.own, base, place.host, place.runtime.warm_shells)
    templates = _templates(place, base)
    houses: dict[Isolation, House] = {
        Isolation.PROCESS: ShellHouse(place.own, shells, place.host, netns),
        Isolation.HYPERVISOR: GuestHouse(base, netns, templates),
    }
    return WineBackend(place.own, base, houses), networks, templates.found.accelerator


def _templates(place: Place, base: Base) -> Templates:
    allowed = is_emulation_allowed(place.hypervisor.allow_emulation, os.environ)
    return Templates(place.content, base, allowed)


def guest_trouble(place: Place) -> str:
    """Why no pod could have a microVM there, told before the place has a runtime."""
    if place.is_simulated:
        return SimulatedBackend().trouble(Isolation.HYPERVISOR)
    base = find_base(place.content)
    return _templates(place, base).trouble() if base else "there is no Wine base."


def _networks(place: Place) -> SandboxNetworks:
    settings = place.network
    directory = settings.cni or place.own / "cni/net.d"
    cni = Cni(directory, settings.plugins, place.own / "cni/cache")
    namespaces = Namespaces(place.own / "netns")
    if settings.cni:
        return SandboxNetworks(namespaces, cni)
    leases, bridge = own_directory(place.content) / "cni/leases", settings.bridge
    if settings.subnets and not cni.write_default(settings.subnets, bridge=bridge, leases=leases):
        _warn_of_other_subnets(directory, settings)
    write = partial(cni.write_told, bridge=bridge, leases=leases, cluster=settings.cluster)
    return SandboxNetworks(namespaces, cni, write)


def _warn_of_other_subnets(directory: Path, settings: NetworkSettings) -> None:
    """The default network is made once: its bridge has an address, and pods have theirs."""
    network = Directory(directory)
    wanted = tuple(str(subnet) for subnet in settings.subnets)
    if network.files() and network.network().subnets != wanted:
        _log.warning(
            "the network of pods is %s still, and not %s; to change it, end all pods, remove %s "
            "and the bridge %s, and start again",
            ", ".join(network.network().subnets),
            ", ".join(wanted),
            directory,
            settings.bridge,
        )

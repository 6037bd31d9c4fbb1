"""Assembling the CRI server from its components. One process per root holds the lock.

A simulated runtime needs no Wine base, no root and no network; its containers end with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from winpod.compute.backend import Backend
from winpod.compute.hypervisor.accelerator import Accelerator, is_emulation_allowed
from winpod.compute.hypervisor.driver import HypervisorIsolation
from winpod.compute.hypervisor.template import Templates
from winpod.compute.isolation_driver import IsolationDriver
from winpod.compute.preflight import Check, Level, require_supported, run_checks
from winpod.compute.process.driver import ProcessIsolation
from winpod.compute.silo_pool import SiloPool
from winpod.compute.simulated import SimulatedBackend
from winpod.compute.wine.backend import WineBackend
from winpod.config import (
    SOCKET,
    ComputeKind,
    HypervisorSettings,
    ImageSettings,
    NetworkSettings,
    RuntimeSettings,
)
from winpod.cri.daemon import IDLE_SECONDS, daemon_directory, read_daemon_info
from winpod.cri.server import CriServer, ServerComponents
from winpod.cri.services.sandboxes import SandboxNetwork
from winpod.cri.state import RuntimeState
from winpod.errors import NotFound, PermissionDenied, Unavailable, WinpodError
from winpod.files import FileLock
from winpod.images.base.builder import Base, latest_base
from winpod.images.pull.puller import Puller
from winpod.images.store.store import Store
from winpod.network.cni import Cni
from winpod.network.cni_config import CniConfigDirectory
from winpod.network.netns import NetworkNamespaces
from winpod.network.sandbox_network import CniSandboxNetwork
from winpod.network.simulated import SimulatedSandboxNetwork
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers
from winpod.windows.isolation import Isolation

_log = logging.getLogger(__name__)

__all__ = ["SOCKET", "RuntimeBusy", "RuntimeLocation", "assemble"]
_LOCK_TIMEOUT = 10


@dataclass(frozen=True, slots=True)
class RuntimeLocation:
    """Directories and settings of a runtime.

    Several runtimes of a machine have a root each and may share the content: images, base, and the
    address leases of the bridge that their pods are connected to.
    """

    root: Path
    host: Build
    images: ImageSettings = field(default_factory=ImageSettings)
    handlers: Handlers = BUILTIN_HANDLERS
    network: NetworkSettings = field(default_factory=NetworkSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    hypervisor: HypervisorSettings = field(default_factory=HypervisorSettings)
    shared: Path | None = None

    @property
    def content(self) -> Path:
        return self.shared or self.root

    @property
    def state_directory(self) -> Path:
        return daemon_directory(self.root)

    @property
    def is_simulated(self) -> bool:
        return self.runtime.compute is ComputeKind.SIMULATED


class RuntimeBusy(Unavailable):
    """Another process holds the lock of the runtime."""


@asynccontextmanager
async def assemble(location: RuntimeLocation) -> AsyncIterator[CriServer]:
    """Assemble the server. Waits briefly for a runtime that is shutting down."""
    base = None if location.is_simulated else _require_base(location)
    try:
        location.state_directory.mkdir(parents=True, exist_ok=True)
        lock = await _lock_state(location)
    except PermissionError:
        raise PermissionDenied(
            f"{location.state_directory} is not writable by this user.",
            "Use sudo, or choose another --root.",
        ) from None
    try:
        components = _wine_components(location, base) if base else _simulated_components(location)
        backend, networks, accelerator = components
        state = RuntimeState(location.state_directory / "state.db")
        with Store(location.content, host=location.host, handlers=location.handlers) as store:
            async with Puller(store, location.images) as puller:
                yield CriServer(
                    ServerComponents(
                        state,
                        store,
                        puller,
                        backend,
                        networks,
                        location.host,
                        location.handlers,
                        accelerator,
                    )
                )
        state.close()
    finally:
        lock.release()


async def _lock_state(location: RuntimeLocation) -> FileLock:
    for _ in range(_LOCK_TIMEOUT * 20):
        if lock := FileLock.try_acquire(location.state_directory / "lock"):
            return lock
        await asyncio.sleep(0.05)
    daemon = read_daemon_info(location.root)
    owner = f"process {daemon.process}" if daemon else "another process"
    raise RuntimeBusy(
        f"{location.root} is already used by a runtime, {owner}.",
        "Use it, or stop it first. A background runtime exits by itself after "
        f"{IDLE_SECONDS} idle seconds.",
    )


_Components = tuple[Backend, SandboxNetwork, Accelerator | None]


def _simulated_components(location: RuntimeLocation) -> _Components:
    return SimulatedBackend(), SimulatedSandboxNetwork(location.network.subnets), None


def _require_base(location: RuntimeLocation) -> Base:
    base = latest_base(location.content)
    if base is None:
        raise NotFound(
            f"No Wine base found in {location.content}; Windows programs cannot run without it.",
            "Build it once: winpod base build",
        )
    if os.geteuid() != 0:
        raise PermissionDenied(
            "Windows containers require root to create mounts, networks and cgroups.",
            "Use sudo, or start `winpod runtime` as root.",
        )
    return base


def _wine_components(location: RuntimeLocation, base: Base) -> _Components:
    require_supported(location.state_directory)
    networks = _networks(location)
    netns = networks.namespaces.path
    settings = location.runtime
    silos = SiloPool(
        location.state_directory, base, location.host, settings.warm_silos, settings.oci_runtime
    )
    templates = _templates(location, base)
    drivers: dict[Isolation, IsolationDriver] = {
        Isolation.PROCESS: ProcessIsolation(location.state_directory, silos, location.host, netns),
        Isolation.HYPERVISOR: HypervisorIsolation(base, netns, templates),
    }
    return (
        WineBackend(location.state_directory, base, drivers),
        networks,
        templates.found.accelerator,
    )


def _templates(location: RuntimeLocation, base: Base) -> Templates:
    allowed = is_emulation_allowed(location.hypervisor.allow_emulation, os.environ)
    return Templates(location.content, base, allowed)


def diagnose(location: RuntimeLocation) -> Iterator[Check]:
    """Check all requirements of the runtime; change nothing."""
    yield from run_checks(location.state_directory, location.runtime.oci_runtime)
    yield _check_plugins(location)
    base = latest_base(location.content)
    yield (
        Check("Wine base", Level.OK, f"{base.id[:12]} in {location.content}")
        if base
        else Check("Wine base", Level.FAILED, f"none in {location.content}", "winpod base build")
    )
    reason = hypervisor_unavailable_reason(location)
    yield (
        Check("hypervisor isolation", Level.DEGRADED, f"unavailable: {reason.rstrip('.')}")
        if reason
        else Check("hypervisor isolation", Level.OK, "microVMs can start")
    )


def _check_plugins(location: RuntimeLocation) -> Check:
    try:
        plugins = _cni(location).find_plugins()
    except WinpodError as error:
        return Check("CNI plugins", Level.FAILED, error.message.rstrip("."), error.hint)
    return Check("CNI plugins", Level.OK, ", ".join(path.name for path in plugins))


def hypervisor_unavailable_reason(location: RuntimeLocation) -> str:
    """Return why hypervisor isolation is unavailable; works before the runtime is started."""
    if location.is_simulated:
        return SimulatedBackend().unavailable_reason(Isolation.HYPERVISOR)
    base = latest_base(location.content)
    return _templates(location, base).unavailable_reason() if base else "no Wine base found."


def _networks(location: RuntimeLocation) -> CniSandboxNetwork:
    settings, cni = location.network, _cni(location)
    namespaces = NetworkNamespaces(location.state_directory / "netns")
    if settings.cni:
        return CniSandboxNetwork(namespaces, cni)
    leases, bridge = daemon_directory(location.content) / "cni/leases", settings.bridge
    if settings.subnets and not cni.write_default(settings.subnets, bridge=bridge, leases=leases):
        _warn_if_subnets_differ(_cni_directory(location), settings)
    write = partial(cni.write_node_network, bridge=bridge, leases=leases, cluster=settings.cluster)
    return CniSandboxNetwork(namespaces, cni, write)


def _cni(location: RuntimeLocation) -> Cni:
    return Cni(
        _cni_directory(location), location.network.plugins, location.state_directory / "cni/cache"
    )


def _cni_directory(location: RuntimeLocation) -> Path:
    return location.network.cni or location.state_directory / "cni/net.d"


def _warn_if_subnets_differ(directory: Path, settings: NetworkSettings) -> None:
    """Warn if the default network has other subnets: it is configured once, and is in use."""
    network = CniConfigDirectory(directory)
    expected = tuple(str(subnet) for subnet in settings.subnets)
    if network.files() and network.network().subnets != expected:
        _log.warning(
            "Pod network is still %s, not %s; to change it, remove all pods, delete %s "
            "and the bridge %s, and restart",
            ", ".join(network.network().subnets),
            ", ".join(expected),
            directory,
            settings.bridge,
        )

"""What one instance should be like: settings, payload, its build and its cluster, put together."""

from __future__ import annotations

from collections.abc import Iterator

from winpod.cluster.instance_settings import (
    HYBRID_OVERLAY_NETWORK,
    InstanceSettings,
    NetworkKind,
    NetworkSettings,
)
from winpod.instances import paths
from winpod.instances.errors import BadPayload
from winpod.instances.rules.desired import Desired, WantedFile, written
from winpod.instances.rules.stopping import CONTAINERD, KUBELET
from winpod.instances.software.containerd_config import (
    containerd_config,
    registry_directory,
    registry_files,
)
from winpod.instances.software.handlers import served_handlers
from winpod.instances.software.joining import Joining
from winpod.instances.software.kubelet_config import bootstrap_kubeconfig, kubelet_config
from winpod.instances.software.network_config import cni_config, kube_proxy_config
from winpod.instances.software.payload import Payload
from winpod.instances.software.programs import (
    CSI_PROXY,
    EXPORTER,
    HYBRID_OVERLAY,
    KUBE_PROXY,
    PROGRAMS,
)
from winpod.instances.software.services import wanted_services
from winpod.windows.builds import Build

CONTAINERS, HYPER_V = "Containers", "Microsoft-Hyper-V"
_EVERY_SERVICE = (KUBE_PROXY, HYBRID_OVERLAY, CSI_PROXY, EXPORTER, KUBELET, CONTAINERD)
_OLDER_SERVICES = ("windows-instance-config-daemon", "azure-cloud-node-manager")
_OLDER_NETWORKS = (HYBRID_OVERLAY_NETWORK, f"Base{HYBRID_OVERLAY_NETWORK}")
_OLDER_FILES = tuple(
    rf"{paths.ROOT}\{name}"
    for name in (
        "kubelet.exe",
        "kube-proxy.exe",
        "kube-log-runner.exe",
        "hybrid-overlay-node.exe",
        "azure-cloud-node-manager.exe",
        "windows-instance-config-daemon.exe",
        "windows_exporter.exe",
        "kubelet.conf",
        "kubelet-ca.crt",
        "kubeconfig",
        "bootstrap-kubeconfig",
        r"cni\config\cni.conf",
        r"containerd\containerd.exe",
        r"containerd\containerd-shim-runhcs-v1.exe",
        r"containerd\containerd_conf.toml",
    )
)


def blueprint(
    settings: InstanceSettings, payload: Payload, build: Build, joining: Joining
) -> Desired:
    """A network of ours is whole, and the version told, once the cluster gave the node a range."""
    _refuse_incomplete(settings.network, payload)
    services = wanted_services(settings, payload, joining)
    running = {service.name for service in services}
    waits = settings.network.kind is not NetworkKind.NONE and not joining.subnet
    kept = {*running, KUBE_PROXY} if waits else running
    images = (one for one in settings.images if one.build in (None, build.base))
    return Desired(
        version=payload.version,
        features=(CONTAINERS, HYPER_V) if settings.hypervisor else (CONTAINERS,),
        directories=_directories(settings),
        owned=paths.OWNED,
        files=(
            *_programs(payload),
            *_configuration(settings, payload, build, joining),
            *_network(settings.network, joining),
            *([] if waits else [written(paths.VERSION, f"{payload.version}\n")]),
        ),
        unwanted_files=_OLDER_FILES,
        services=services,
        unwanted_services=tuple(
            name for name in (*_OLDER_SERVICES, *_EVERY_SERVICE) if name not in kept
        ),
        networks=_networks(settings),
        images=tuple(one.image for one in images),
    )


def everything_of_ours(settings: InstanceSettings) -> Desired:
    """What may be on an instance that is to be left: for this no payload is needed."""
    return Desired(
        version="",
        directories=_directories(settings),
        owned=paths.OWNED,
        unwanted_files=(paths.VERSION, *_OLDER_FILES),
        unwanted_services=(*_OLDER_SERVICES, *_EVERY_SERVICE),
        networks=_networks(settings),
    )


def _refuse_incomplete(network: NetworkSettings, payload: Payload) -> None:
    needed: list[str] = []
    if network.kind is not NetworkKind.NONE:
        needed = [f"{network.kind}.exe", "host-local.exe", "kube-proxy.exe"]
    if network.hybrid_overlay:
        needed.append("hybrid-overlay-node.exe")
    if missing := [name for name in needed if not payload.has(name)]:
        raise BadPayload(
            f"the network {network.kind} needs {', '.join(missing)}, which the payload has not.",
            "Add them to the payload, or leave the network to the cluster with network.kind: none.",
        )


def _directories(settings: InstanceSettings) -> tuple[str, ...]:
    ours = (
        *paths.SHARED,
        *paths.OWNED,
        paths.REGISTRIES,
        *(registry_directory(registry) for registry, _ in settings.mirrors),
        paths.CNI_BIN,
        paths.CNI_CONFIG,
    )
    return tuple(dict.fromkeys(ours))


def _networks(settings: InstanceSettings) -> tuple[str, ...]:
    names = (*_OLDER_NETWORKS, settings.network.name)
    return tuple(dict.fromkeys(name for name in names if name))


def _programs(payload: Payload) -> Iterator[WantedFile]:
    for name in PROGRAMS:
        if file := payload.files.get(name):
            program = file.program
            yield WantedFile(
                program.path,
                file.sha256,
                source=file.source,
                used_by=program.used_by,
                size=file.size,
                used_by_pods=program.used_by_pods,
            )


def _configuration(
    settings: InstanceSettings, payload: Payload, build: Build, joining: Joining
) -> Iterator[WantedFile]:
    handlers = served_handlers(build, settings.pause_build, hypervisor=settings.hypervisor)
    config = containerd_config(payload.containerd, handlers, settings)
    yield written(paths.CONTAINERD_CONFIG, config, (CONTAINERD,))
    yield from registry_files(settings)
    yield written(paths.KUBELET_CONFIG, kubelet_config(settings), (KUBELET,))
    yield written(paths.KUBELET_CA, joining.authority, (KUBELET,))
    if joining.token:
        yield written(
            paths.BOOTSTRAP_KUBECONFIG,
            bootstrap_kubeconfig(joining),
            (KUBELET,),
            is_secret=True,
            unless=(paths.KUBECONFIG, paths.CLIENT_CERTIFICATE),
        )


def _network(network: NetworkSettings, joining: Joining) -> Iterator[WantedFile]:
    """containerd sees a new network by itself."""
    if network.kind is not NetworkKind.NONE and joining.subnet:
        yield written(paths.NETWORK_CONFIG, cni_config(network, joining))
        yield written(paths.KUBE_PROXY_CONFIG, kube_proxy_config(network, joining), (KUBE_PROXY,))

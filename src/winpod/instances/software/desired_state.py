"""Desired state of one instance, from settings, payload, Windows build and cluster.

containerd has one pause image for all handlers and selects its platform by the host, as for every
image. Under a hypervisor the guest's build is that of the pause image, whatever the handler's name
says. So there is a handler for the build of the pause image, and for no other.

Services start in order: containerd first, then the kubelet, which depends on containerd alone.
Services that do not need the kubelet do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from winpod.instances import paths
from winpod.instances.errors import InvalidConfiguration, InvalidPayload
from winpod.instances.planner.desired import DesiredFile, DesiredService, DesiredState, inline_file
from winpod.instances.planner.state import CONTAINERD, KUBELET
from winpod.instances.software.containerd_config import (
    containerd_command,
    containerd_config,
    registry_directory,
    registry_files,
)
from winpod.instances.software.kubelet_config import (
    JoinConfig,
    bootstrap_kubeconfig,
    kubelet_command,
    kubelet_config,
)
from winpod.instances.software.network_config import (
    cni_config,
    hybrid_overlay_command,
    kube_proxy_command,
    kube_proxy_config,
)
from winpod.instances.software.payload import Payload
from winpod.instances.software.programs import (
    CSI_PROXY,
    EXPORTER,
    HYBRID_OVERLAY,
    KUBE_PROXY,
    PROGRAMS,
)
from winpod.operator.instance_settings import (
    HYBRID_OVERLAY_NETWORK,
    InstanceNetworkSettings,
    InstanceSettings,
    NetworkKind,
)
from winpod.windows.builds import Build
from winpod.windows.command_line import join as join_command_line
from winpod.windows.handlers import HYPERVISOR_HANDLER, PROCESS_HANDLER, Handler, hypervisor_handler
from winpod.windows.isolation import describe_accepted_builds, guest_fits_host, image_fits_host


def served_handlers(host: Build, pause: Build | None, *, hypervisor: bool) -> tuple[Handler, ...]:
    """Return the handlers containerd can serve, the default first.

    A pause image without a build of its own has the host's.
    """
    guest = (pause or host).base
    handlers = [PROCESS_HANDLER] if image_fits_host(guest, host) else []
    if hypervisor and guest_fits_host(guest, host):
        handlers += [HYPERVISOR_HANDLER] if guest == host.base else []
        handlers.append(hypervisor_handler(guest))
    if not handlers:
        raise InvalidConfiguration(
            f"no pod can start on {host.describe()}: the pause image is of {guest.describe()}, "
            f"and the host accepts {describe_accepted_builds(host)}.",
            "Omit pauseBuild and use a pause image with every build, or set hypervisor to true if "
            "the image is older than the host.",
        )
    return tuple(handlers)


_COLLECTORS = "cpu,cpu_info,container,logical_disk,memory,net,os,service,system"


def desired_services(
    settings: InstanceSettings, payload: Payload, join: JoinConfig
) -> tuple[DesiredService, ...]:
    """Return the services; kube-proxy is added once the node has a pod CIDR, which it requires."""
    network, rotates = settings.network, payload.rotates_logs
    services = [
        _service(CONTAINERD, containerd_command(), "Runs the containers of this node."),
        _service(
            KUBELET,
            kubelet_command(settings, join, rotates=rotates),
            "Runs the pods that the cluster gives to this node.",
            CONTAINERD,
        ),
    ]
    if payload.has(f"{EXPORTER}.exe"):
        services.append(_service(EXPORTER, _exporter(), "Serves this node's metrics."))
    if payload.has(f"{CSI_PROXY}.exe"):
        services.append(_service(CSI_PROXY, _csi_proxy(), "Handles disks for storage drivers."))
    if network.hybrid_overlay:
        overlay = hybrid_overlay_command(network, join)
        description = "Joins this node's pods to the cluster's network."
        services.append(_service(HYBRID_OVERLAY, overlay, description, KUBELET))
    if network.kind is not NetworkKind.NONE and join.subnet:
        depends_on = (HYBRID_OVERLAY,) if network.hybrid_overlay else ()
        description = "Leads to the cluster's services from this node."
        proxy = kube_proxy_command(rotates=rotates)
        services.append(_service(KUBE_PROXY, proxy, description, *depends_on))
    return tuple(services)


def _exporter() -> tuple[str, ...]:
    return (rf"{paths.BIN}\{EXPORTER}.exe", f"--collectors.enabled={_COLLECTORS}")


def _csi_proxy() -> tuple[str, ...]:
    log = rf"-log_file={paths.CSI_PROXY_LOGS}\csi-proxy.log"
    return (rf"{paths.BIN}\{CSI_PROXY}.exe", "-windows-service", log, "-logtostderr=false")


def _service(
    name: str, command: tuple[str, ...], description: str, *depends: str
) -> DesiredService:
    return DesiredService(name, join_command_line(command), depends, description)


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


def build_desired_state(
    settings: InstanceSettings, payload: Payload, build: Build, join: JoinConfig
) -> DesiredState:
    """Return the desired state.

    With a network managed by winpod, kube-proxy, CNI configuration and version file follow once the
    cluster has assigned a pod CIDR.
    """
    _refuse_incomplete(settings.network, payload)
    services = desired_services(settings, payload, join)
    service_names = {service.name for service in services}
    awaits_subnet = settings.network.kind is not NetworkKind.NONE and not join.subnet
    retained = {*service_names, KUBE_PROXY} if awaits_subnet else service_names
    images = (image for image in settings.images if image.build in (None, build.base))
    return DesiredState(
        version=payload.version,
        features=(CONTAINERS, HYPER_V) if settings.hypervisor else (CONTAINERS,),
        directories=_directories(settings),
        managed_directories=paths.OWNED,
        files=(
            *_programs(payload),
            *_configuration(settings, payload, build, join),
            *_network(settings.network, join),
            *([] if awaits_subnet else [inline_file(paths.VERSION, f"{payload.version}\n")]),
        ),
        unwanted_files=_OLDER_FILES,
        services=services,
        unwanted_services=tuple(
            name for name in (*_OLDER_SERVICES, *_EVERY_SERVICE) if name not in retained
        ),
        networks=_networks(settings),
        images=tuple(image.image for image in images),
    )


def desired_removal(settings: InstanceSettings) -> DesiredState:
    """Return everything that may be on an instance to remove; needs no payload."""
    return DesiredState(
        version="",
        directories=_directories(settings),
        managed_directories=paths.OWNED,
        unwanted_files=(paths.VERSION, *_OLDER_FILES),
        unwanted_services=(*_OLDER_SERVICES, *_EVERY_SERVICE),
        networks=_networks(settings),
    )


def _refuse_incomplete(network: InstanceNetworkSettings, payload: Payload) -> None:
    required: list[str] = []
    if network.kind is not NetworkKind.NONE:
        required = [f"{network.kind}.exe", "host-local.exe", "kube-proxy.exe"]
    if network.hybrid_overlay:
        required.append("hybrid-overlay-node.exe")
    if missing := [name for name in required if not payload.has(name)]:
        raise InvalidPayload(
            f"the network {network.kind} needs {', '.join(missing)}, missing in the payload.",
            "Add them to the payload, or leave the network to the cluster with network.kind: none.",
        )


def _directories(settings: InstanceSettings) -> tuple[str, ...]:
    directories = (
        *paths.SHARED,
        *paths.OWNED,
        paths.REGISTRIES,
        *(registry_directory(registry) for registry, _ in settings.mirrors),
        paths.CNI_BIN,
        paths.CNI_CONFIG,
    )
    return tuple(dict.fromkeys(directories))


def _networks(settings: InstanceSettings) -> tuple[str, ...]:
    names = (*_OLDER_NETWORKS, settings.network.name)
    return tuple(dict.fromkeys(name for name in names if name))


def _programs(payload: Payload) -> Iterator[DesiredFile]:
    for name in PROGRAMS:
        if file := payload.files.get(name):
            program = file.program
            yield DesiredFile(
                program.path,
                file.sha256,
                source=file.source,
                used_by=program.used_by,
                size=file.size,
                used_by_pods=program.used_by_pods,
            )


def _configuration(
    settings: InstanceSettings, payload: Payload, build: Build, join: JoinConfig
) -> Iterator[DesiredFile]:
    handlers = served_handlers(build, settings.pause_build, hypervisor=settings.hypervisor)
    config = containerd_config(payload.containerd, handlers, settings)
    yield inline_file(paths.CONTAINERD_CONFIG, config, (CONTAINERD,))
    yield from registry_files(settings)
    yield inline_file(paths.KUBELET_CONFIG, kubelet_config(settings), (KUBELET,))
    yield inline_file(paths.KUBELET_CA, join.authority, (KUBELET,))
    if join.token:
        yield inline_file(
            paths.BOOTSTRAP_KUBECONFIG,
            bootstrap_kubeconfig(join),
            (KUBELET,),
            is_secret=True,
            unless=(paths.KUBECONFIG, paths.CLIENT_CERTIFICATE),
        )


def _network(network: InstanceNetworkSettings, join: JoinConfig) -> Iterator[DesiredFile]:
    """Yield the network configuration. containerd picks up a new CNI configuration by itself."""
    if network.kind is not NetworkKind.NONE and join.subnet:
        yield inline_file(paths.NETWORK_CONFIG, cni_config(network, join))
        yield inline_file(paths.KUBE_PROXY_CONFIG, kube_proxy_config(network, join), (KUBE_PROXY,))

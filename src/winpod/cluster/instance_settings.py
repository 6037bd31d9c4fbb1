"""What a cluster's people decide about Windows Server instances: the settings' table `instances`.

Every field has a default, and a network of ours has to be asked for: most clusters bring their own.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import urlsplit

from winpod.images.references import parse_reference
from winpod.windows.builds import Build, parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import At, InvalidField, Pairs

PAUSE_IMAGE = "mcr.microsoft.com/oss/kubernetes/pause:3.9"
_KUBELETS_DOMAINS = ("node.kubernetes.io", "kubelet.kubernetes.io")
HYBRID_OVERLAY_NETWORK = "OVNKubernetesHybridOverlayNetwork"


class NetworkKind(StrEnum):
    """Which CNI plugin joins pods to the network; `NONE` leaves that, and kube-proxy, to others."""

    NONE = "none"
    WIN_OVERLAY = "win-overlay"
    SDN_OVERLAY = "sdnoverlay"
    SDN_BRIDGE = "sdnbridge"

    @property
    def is_overlay(self) -> bool:
        return self in (NetworkKind.WIN_OVERLAY, NetworkKind.SDN_OVERLAY)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """`name` is that of the network of the host; pods and services are ranges of addresses."""

    kind: NetworkKind = NetworkKind.NONE
    name: str = ""
    pods: str = ""
    services: str = ""
    hybrid_overlay: bool = False
    vxlan_port: int = 0


@dataclass(frozen=True, slots=True)
class PrePulled:
    """An image that is there before the first pod; of a base image, on hosts of its build only."""

    image: str
    build: Build | None = None


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """`at_most` instances that are nodes already change at a time.

    `api_server` is where instances reach the cluster, if not where its cluster-info says. Machines
    are instances where their namespace is named. A drain and a Node are awaited for so long.

    The pause image's build is that of every guest under a hypervisor; without `pause_build` the
    image has one for each host. `mirrors` are asked before the registry that they are for.
    """

    at_most: int = 1
    hypervisor: bool = False
    pause_image: str = PAUSE_IMAGE
    pause_build: Build | None = None
    pull_progress_seconds: int = 1800
    mirrors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    images: tuple[PrePulled, ...] = ()
    network: NetworkSettings = NetworkSettings()
    dns_servers: tuple[str, ...] = ()
    dns_domain: str = "cluster.local"
    labels: Pairs = ()
    cloud_provider: str = ""
    api_server: str = ""
    machine_namespace: str = ""
    machine_user: str = "Administrator"
    drain_seconds: int = 1800
    join_seconds: int = 900


def read_instances(at: At) -> InstanceSettings:
    at.allow(
        "atMost",
        "hypervisor",
        "pauseImage",
        "pauseBuild",
        "pullProgressSeconds",
        "mirrors",
        "images",
        "network",
        "dns",
        "labels",
        "cloudProvider",
        "apiServer",
        "machineNamespace",
        "machineUser",
        "drainSeconds",
        "joinSeconds",
    )
    default = InstanceSettings()
    dns = at.get("dns")
    dns.allow("servers", "domain")
    build = at.get("pauseBuild")
    return InstanceSettings(
        at_most=_whole(at.get("atMost"), default.at_most, 1, 100),
        hypervisor=at.get("hypervisor").flag(),
        pause_image=_image(at.get("pauseImage"), default.pause_image),
        pause_build=_build(build) if build else None,
        pull_progress_seconds=_whole(
            at.get("pullProgressSeconds"), default.pull_progress_seconds, 60, 86400
        ),
        mirrors=_mirrors(at.get("mirrors")),
        images=tuple(_pre_pulled(item) for item in at.get("images").items()),
        network=_network(at.get("network")),
        dns_servers=tuple(_address(item) for item in dns.get("servers").items()),
        dns_domain=dns.get("domain").text(default.dns_domain),
        labels=_labels(at.get("labels")),
        cloud_provider=at.get("cloudProvider").one_of("external"),
        api_server=_url(at.get("apiServer")),
        machine_namespace=at.get("machineNamespace").text(),
        machine_user=at.get("machineUser").text() or default.machine_user,
        drain_seconds=_whole(at.get("drainSeconds"), default.drain_seconds, 1, 86400),
        join_seconds=_whole(at.get("joinSeconds"), default.join_seconds, 1, 86400),
    )


def _network(at: At) -> NetworkSettings:
    at.allow("kind", "name", "pods", "services", "hybridOverlay", "vxlanPort")
    kind = NetworkKind(at.get("kind").one_of(*NetworkKind) or NetworkKind.NONE)
    hybrid = at.get("hybridOverlay").flag()
    if kind is NetworkKind.NONE:
        for other in ("name", "pods", "services", "hybridOverlay", "vxlanPort"):
            if at.get(other):
                raise InvalidField(
                    at.get(other).path, "is for a network of ours, and network.kind is none"
                )
        return NetworkSettings()
    if hybrid and kind is not NetworkKind.WIN_OVERLAY:
        raise InvalidField(
            at.get("hybridOverlay").path, f"needs the kind {NetworkKind.WIN_OVERLAY}, not {kind}"
        )
    name = at.get("name").text() or (HYBRID_OVERLAY_NETWORK if hybrid else "")
    return NetworkSettings(
        kind=kind,
        name=name or at.get("name").required_text(),
        pods=_range(at.get("pods")),
        services=_range(at.get("services")),
        hybrid_overlay=hybrid,
        vxlan_port=_whole(at.get("vxlanPort"), 0, 1, 65535),
    )


def _mirrors(at: At) -> tuple[tuple[str, tuple[str, ...]], ...]:
    mirrors = []
    for registry in at.names():
        urls = at.get(registry)
        for url in urls.items():
            parts = urlsplit(url.required_text())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidField(
                    url.path, f'is "{url.text()}", and must be a URL such as https://mirror.example'
                )
        mirrors.append((registry, urls.texts()))
    return tuple(mirrors)


def _url(at: At) -> str:
    """Nothing, or where instances find the API server."""
    parts = urlsplit(at.text())
    if at.text() and (parts.scheme != "https" or not parts.hostname):
        raise InvalidField(
            at.path, f'is "{at.text()}", and must be a URL such as https://api.example:6443'
        )
    return at.text().rstrip("/")


def _pre_pulled(at: At) -> PrePulled:
    if isinstance(at.value, str):
        return PrePulled(_image(at, ""))
    at.allow("image", "build")
    at.get("image").required_text()
    build = at.get("build")
    return PrePulled(_image(at.get("image"), ""), _build(build) if build else None)


def _labels(at: At) -> Pairs:
    """A kubelet that names one of Kubernetes' own labels is not let in by the API server."""
    for name in at.names():
        domain = name.rpartition("/")[0]
        own = domain.split(".")[-2:] in (["kubernetes", "io"], ["k8s", "io"])
        if own and not domain.endswith(_KUBELETS_DOMAINS):
            raise InvalidField(
                at.get(name).path, "is a label of Kubernetes' own, which no kubelet may set"
            )
    return at.pairs()


def _image(at: At, default: str) -> str:
    """As containerd names it afterwards: by its digest alone, where it has one."""
    try:
        found = parse_reference(at.text(default))
        return str(replace(found, tag="") if found.digest else found)
    except InvalidInput as error:
        raise InvalidField(at.path, f"is wrong: {str(error).rstrip('.')}") from None


def _build(at: At) -> Build:
    try:
        return parse_build(at.text()).base
    except InvalidInput as error:
        raise InvalidField(at.path, f"is wrong: {str(error).rstrip('.')}") from None


def _range(at: At) -> str:
    try:
        return str(ipaddress.IPv4Network(at.required_text()))
    except ValueError:
        raise InvalidField(
            at.path, f'is "{at.text()}", and must be a range of addresses such as 10.244.0.0/16'
        ) from None


def _address(at: At) -> str:
    try:
        return str(ipaddress.ip_address(at.required_text()))
    except ValueError:
        raise InvalidField(at.path, f'is "{at.text()}", and must be an address') from None


def _whole(at: At, default: int, least: int, most: int) -> int:
    number = at.number(default, min(least, default), most)
    if number != int(number):
        raise InvalidField(at.path, f"is {number}, and must be a whole number")
    return int(number)

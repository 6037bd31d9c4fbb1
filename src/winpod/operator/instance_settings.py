"""Settings of Windows Server instances: the table `instances` of the operator's settings.

Every field has a default. By default no network is configured, since most clusters have their own.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import urlsplit

from winpod.errors import InvalidInput
from winpod.field_reader import Field, InvalidField, TextPairs
from winpod.images.references import parse_reference
from winpod.windows.builds import Build, parse_build

PAUSE_IMAGE = "mcr.microsoft.com/oss/kubernetes/pause:3.9"
_KUBELET_LABEL_DOMAINS = ("node.kubernetes.io", "kubelet.kubernetes.io")
HYBRID_OVERLAY_NETWORK = "OVNKubernetesHybridOverlayNetwork"


class NetworkKind(StrEnum):
    """The CNI plugin to configure; `NONE` leaves CNI and kube-proxy to the cluster's owner."""

    NONE = "none"
    WIN_OVERLAY = "win-overlay"
    SDN_OVERLAY = "sdnoverlay"
    SDN_BRIDGE = "sdnbridge"

    @property
    def is_overlay(self) -> bool:
        return self in (NetworkKind.WIN_OVERLAY, NetworkKind.SDN_OVERLAY)


@dataclass(frozen=True, slots=True)
class InstanceNetworkSettings:
    """`name` is that of the HNS network; `pods` and `services` are CIDRs."""

    kind: NetworkKind = NetworkKind.NONE
    name: str = ""
    pods: str = ""
    services: str = ""
    hybrid_overlay: bool = False
    vxlan_port: int = 0


@dataclass(frozen=True, slots=True)
class PrePulledImage:
    """An image pulled before the first pod; with a `build`, only on hosts of that build."""

    image: str
    build: Build | None = None


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """Settings of Windows Server instances.

    At most `at_most` instances that are already nodes are changed at a time. `api_server` is the
    address instances use, by default the one in cluster-info. Machines in `machine_namespace` are
    instances too. `drain_seconds` and `join_seconds` are the timeouts of a drain and of a Node.

    `pause_build` is the build of the pause image in hypervisor guests; without it, the image must
    have one for each host. `mirrors` are tried before the registry they are for.
    """

    at_most: int = 1
    hypervisor: bool = False
    pause_image: str = PAUSE_IMAGE
    pause_build: Build | None = None
    pull_progress_seconds: int = 1800
    mirrors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    images: tuple[PrePulledImage, ...] = ()
    network: InstanceNetworkSettings = InstanceNetworkSettings()
    dns_servers: tuple[str, ...] = ()
    dns_domain: str = "cluster.local"
    labels: TextPairs = ()
    cloud_provider: str = ""
    api_server: str = ""
    machine_namespace: str = ""
    machine_user: str = "Administrator"
    drain_seconds: int = 1800
    join_seconds: int = 900


def read_instance_settings(field: Field) -> InstanceSettings:
    field.reject_unknown_keys(
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
    dns = field.get("dns")
    dns.reject_unknown_keys("servers", "domain")
    build = field.get("pauseBuild")
    return InstanceSettings(
        at_most=_whole(field.get("atMost"), default.at_most, 1, 100),
        hypervisor=field.get("hypervisor").flag(),
        pause_image=_image(field.get("pauseImage"), default.pause_image),
        pause_build=_build(build) if build else None,
        pull_progress_seconds=_whole(
            field.get("pullProgressSeconds"), default.pull_progress_seconds, 60, 86400
        ),
        mirrors=_mirrors(field.get("mirrors")),
        images=tuple(_pre_pulled(item) for item in field.get("images").items()),
        network=_network(field.get("network")),
        dns_servers=tuple(_address(item) for item in dns.get("servers").items()),
        dns_domain=dns.get("domain").text(default.dns_domain),
        labels=_labels(field.get("labels")),
        cloud_provider=field.get("cloudProvider").one_of("external"),
        api_server=_url(field.get("apiServer")),
        machine_namespace=field.get("machineNamespace").text(),
        machine_user=field.get("machineUser").text() or default.machine_user,
        drain_seconds=_whole(field.get("drainSeconds"), default.drain_seconds, 1, 86400),
        join_seconds=_whole(field.get("joinSeconds"), default.join_seconds, 1, 86400),
    )


def _network(field: Field) -> InstanceNetworkSettings:
    field.reject_unknown_keys("kind", "name", "pods", "services", "hybridOverlay", "vxlanPort")
    kind = NetworkKind(field.get("kind").one_of(*NetworkKind) or NetworkKind.NONE)
    hybrid = field.get("hybridOverlay").flag()
    if kind is NetworkKind.NONE:
        for key in ("name", "pods", "services", "hybridOverlay", "vxlanPort"):
            if field.get(key):
                raise InvalidField(field.get(key).path, "needs a network.kind other than none")
        return InstanceNetworkSettings()
    if hybrid and kind is not NetworkKind.WIN_OVERLAY:
        raise InvalidField(
            field.get("hybridOverlay").path, f"needs the kind {NetworkKind.WIN_OVERLAY}, not {kind}"
        )
    name = field.get("name").text() or (HYBRID_OVERLAY_NETWORK if hybrid else "")
    return InstanceNetworkSettings(
        kind=kind,
        name=name or field.get("name").required_text(),
        pods=_range(field.get("pods")),
        services=_range(field.get("services")),
        hybrid_overlay=hybrid,
        vxlan_port=_whole(field.get("vxlanPort"), 0, 1, 65535),
    )


def _mirrors(field: Field) -> tuple[tuple[str, tuple[str, ...]], ...]:
    mirrors = []
    for registry in field.key_names():
        urls = field.get(registry)
        for url in urls.items():
            parts = urlsplit(url.required_text())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidField(
                    url.path, f'is "{url.text()}", and must be a URL such as https://mirror.example'
                )
        mirrors.append((registry, urls.text_list()))
    return tuple(mirrors)


def _url(field: Field) -> str:
    """Return the URL of the API server for instances, or an empty string."""
    parts = urlsplit(field.text())
    if field.text() and (parts.scheme != "https" or not parts.hostname):
        raise InvalidField(
            field.path, f'is "{field.text()}", and must be a URL such as https://api.example:6443'
        )
    return field.text().rstrip("/")


def _pre_pulled(field: Field) -> PrePulledImage:
    if isinstance(field.value, str):
        return PrePulledImage(_image(field, ""))
    field.reject_unknown_keys("image", "build")
    field.get("image").required_text()
    build = field.get("build")
    return PrePulledImage(_image(field.get("image"), ""), _build(build) if build else None)


def _labels(field: Field) -> TextPairs:
    """Validate labels: NodeRestriction rejects a kubelet that sets reserved Kubernetes labels."""
    for name in field.key_names():
        domain = name.rpartition("/")[0]
        reserved = domain.split(".")[-2:] in (["kubernetes", "io"], ["k8s", "io"])
        if reserved and not domain.endswith(_KUBELET_LABEL_DOMAINS):
            raise InvalidField(
                field.get(name).path, "is a reserved Kubernetes label, which a kubelet may not set"
            )
    return field.text_map()


def _image(field: Field, default: str) -> str:
    """Normalise a reference as containerd does: the tag is dropped if there is a digest."""
    try:
        reference = parse_reference(field.text(default))
        return str(replace(reference, tag="") if reference.digest else reference)
    except InvalidInput as error:
        raise InvalidField(field.path, f"is wrong: {str(error).rstrip('.')}") from None


def _build(field: Field) -> Build:
    try:
        return parse_build(field.text()).base
    except InvalidInput as error:
        raise InvalidField(field.path, f"is wrong: {str(error).rstrip('.')}") from None


def _range(field: Field) -> str:
    try:
        return str(ipaddress.IPv4Network(field.required_text()))
    except ValueError:
        raise InvalidField(
            field.path, f'is "{field.text()}", and must be a CIDR such as 10.244.0.0/16'
        ) from None


def _address(field: Field) -> str:
    try:
        return str(ipaddress.ip_address(field.required_text()))
    except ValueError:
        raise InvalidField(field.path, f'is "{field.text()}", and must be an IP address') from None


def _whole(field: Field, default: int, minimum: int, maximum: int) -> int:
    number = field.number(default, min(minimum, default), maximum)
    if number != int(number):
        raise InvalidField(field.path, f"is {number}, and must be a whole number")
    return int(number)

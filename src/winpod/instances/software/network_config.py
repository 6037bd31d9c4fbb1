"""Networks of pods on an instance: the CNI plugin's configuration and kube-proxy's.

Policies are those of the second interface of the Host Networking Service, which is the only one
that containerd's sandboxes work with. The last address of a node's range is kube-proxy's, which
makes an endpoint of it, and the range that pods get addresses from ends before it.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import yaml

from winpod.cluster.instance_settings import NetworkKind, NetworkSettings
from winpod.instances import paths
from winpod.instances.errors import BadConfiguration
from winpod.instances.software.joining import Joining
from winpod.instances.software.kubelet_config import logged

_SMALLEST = 28


def cni_config(network: NetworkSettings, joining: Joining) -> str:
    subnet = _subnet(joining)
    is_first_party = network.kind is NetworkKind.WIN_OVERLAY
    document: dict[str, Any] = {
        "cniVersion": "1.0.0" if is_first_party else "0.2.0",
        "name": network.name,
        "type": str(network.kind),
        "capabilities": {"portMappings": True, "dns": True},
        "ipam": {
            "type": "host-local",
            "subnet": str(subnet),
            "rangeEnd": str(subnet[-3]),
        },
    }
    if is_first_party:
        document["apiVersion"] = 2
    else:
        document["ipam"]["routes"] = [{"GW": str(subnet[1])}]
    key, name, value = ("policies", "name", "value") if is_first_party else _SDN_KEYS
    document[key] = [
        {name: "EndpointPolicy", value: policy} for policy in _policies(network, joining)
    ]
    return json.dumps(document, indent=2) + "\n"


_SDN_KEYS = ("AdditionalArgs", "Name", "Value")


def _policies(network: NetworkSettings, joining: Joining) -> list[dict[str, Any]]:
    """Pods reach each other and services as themselves, services through the host's tables."""
    policies: list[dict[str, Any]] = [
        {"Type": "OutBoundNAT", "Settings": {"Exceptions": [network.pods, network.services]}},
        {
            "Type": "SDNRoute",
            "Settings": {"DestinationPrefix": network.services, "NeedEncap": True},
        },
    ]
    if network.kind.is_overlay and joining.ip:
        policies.append({"Type": "ProviderAddress", "Settings": {"ProviderAddress": joining.ip}})
    return policies


def kube_proxy_config(network: NetworkSettings, joining: Joining) -> str:
    winkernel: dict[str, Any] = {"networkName": network.name, "enableDSR": True}
    if network.kind.is_overlay:
        winkernel["sourceVip"] = str(_subnet(joining)[-2])
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "kernelspace",
        "hostnameOverride": joining.node,
        "clusterCIDR": network.pods,
        "clientConnection": {"kubeconfig": paths.KUBECONFIG},
        "winkernel": winkernel,
    }
    return yaml.safe_dump(document, sort_keys=False)


def kube_proxy_command(*, rotates: bool) -> tuple[str, ...]:
    program = logged("kube-proxy", paths.KUBE_PROXY_LOGS, rotates=rotates)
    return (*program, f"--config={paths.KUBE_PROXY_CONFIG}", "--windows-service")


def hybrid_overlay_command(network: NetworkSettings, joining: Joining) -> tuple[str, ...]:
    """It joins with the kubelet's credentials, and gets a certificate of its own with them."""
    port = f"--hybrid-overlay-vxlan-port={network.vxlan_port}" if network.vxlan_port else ""
    command = (
        rf"{paths.BIN}\hybrid-overlay-node.exe",
        f"--node={joining.node}",
        f"--bootstrap-kubeconfig={paths.KUBECONFIG}",
        f"--cert-dir={paths.HYBRID_OVERLAY}",
        "--cert-duration=24h",
        f"--k8s-apiserver={joining.api_server}",
        f"--k8s-cacert={paths.KUBELET_CA}",
        rf"--logfile={paths.HYBRID_OVERLAY_LOGS}\hybrid-overlay.log",
        port,
        "--windows-service",
    )
    return tuple(argument for argument in command if argument)


def _subnet(joining: Joining) -> ipaddress.IPv4Network:
    try:
        subnet = ipaddress.IPv4Network(joining.subnet)
    except ValueError:
        raise BadConfiguration(
            f'{joining.node}: the range of its pods is "{joining.subnet}", and must be one of '
            "IPv4, such as 10.244.3.0/24.",
            "Give the cluster a range of IPv4 addresses for pods, first in the list.",
        ) from None
    if subnet.prefixlen > _SMALLEST:
        raise BadConfiguration(
            f"{joining.node}: the range of its pods, {subnet}, is too small for a node.",
            f"Give nodes a range of /{_SMALLEST} or larger.",
        )
    return subnet

"""Pod networks of an instance: configuration of the CNI plugin and of kube-proxy.

Policies are of HNS API version 2, the only one that works with containerd sandboxes. The last
address of a node's pod CIDR is kube-proxy's source VIP, so the IPAM range ends before it.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import yaml

from winpod.instances import paths
from winpod.instances.errors import InvalidConfiguration
from winpod.instances.software.kubelet_config import JoinConfig, with_log_runner
from winpod.operator.instance_settings import InstanceNetworkSettings, NetworkKind

_MAX_PREFIX_LENGTH = 28


def cni_config(network: InstanceNetworkSettings, join: JoinConfig) -> str:
    subnet = _subnet(join)
    is_win_overlay = network.kind is NetworkKind.WIN_OVERLAY
    document: dict[str, Any] = {
        "cniVersion": "1.0.0" if is_win_overlay else "0.2.0",
        "name": network.name,
        "type": str(network.kind),
        "capabilities": {"portMappings": True, "dns": True},
        "ipam": {
            "type": "host-local",
            "subnet": str(subnet),
            "rangeEnd": str(subnet[-3]),
        },
    }
    if is_win_overlay:
        document["apiVersion"] = 2
    else:
        document["ipam"]["routes"] = [{"GW": str(subnet[1])}]
    key, name, value = ("policies", "name", "value") if is_win_overlay else _SDN_KEYS
    document[key] = [{name: "EndpointPolicy", value: policy} for policy in _policies(network, join)]
    return json.dumps(document, indent=2) + "\n"


_SDN_KEYS = ("AdditionalArgs", "Name", "Value")


def _policies(network: InstanceNetworkSettings, join: JoinConfig) -> list[dict[str, Any]]:
    """Return the endpoint policies: no NAT between pods and services, encapsulated services."""
    policies: list[dict[str, Any]] = [
        {"Type": "OutBoundNAT", "Settings": {"Exceptions": [network.pods, network.services]}},
        {
            "Type": "SDNRoute",
            "Settings": {"DestinationPrefix": network.services, "NeedEncap": True},
        },
    ]
    if network.kind.is_overlay and join.ip:
        policies.append({"Type": "ProviderAddress", "Settings": {"ProviderAddress": join.ip}})
    return policies


def kube_proxy_config(network: InstanceNetworkSettings, join: JoinConfig) -> str:
    winkernel: dict[str, Any] = {"networkName": network.name, "enableDSR": True}
    if network.kind.is_overlay:
        winkernel["sourceVip"] = str(_subnet(join)[-2])
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "kernelspace",
        "hostnameOverride": join.node,
        "clusterCIDR": network.pods,
        "clientConnection": {"kubeconfig": paths.KUBECONFIG},
        "winkernel": winkernel,
    }
    return yaml.safe_dump(document, sort_keys=False)


def kube_proxy_command(*, rotates: bool) -> tuple[str, ...]:
    program = with_log_runner("kube-proxy", paths.KUBE_PROXY_LOGS, rotates=rotates)
    return (*program, f"--config={paths.KUBE_PROXY_CONFIG}", "--windows-service")


def hybrid_overlay_command(network: InstanceNetworkSettings, join: JoinConfig) -> tuple[str, ...]:
    """Return the command; it bootstraps its own certificate with the kubelet's credentials."""
    port = f"--hybrid-overlay-vxlan-port={network.vxlan_port}" if network.vxlan_port else ""
    command = (
        rf"{paths.BIN}\hybrid-overlay-node.exe",
        f"--node={join.node}",
        f"--bootstrap-kubeconfig={paths.KUBECONFIG}",
        f"--cert-dir={paths.HYBRID_OVERLAY}",
        "--cert-duration=24h",
        f"--k8s-apiserver={join.api_server}",
        f"--k8s-cacert={paths.KUBELET_CA}",
        rf"--logfile={paths.HYBRID_OVERLAY_LOGS}\hybrid-overlay.log",
        port,
        "--windows-service",
    )
    return tuple(argument for argument in command if argument)


def _subnet(join: JoinConfig) -> ipaddress.IPv4Network:
    try:
        subnet = ipaddress.IPv4Network(join.subnet)
    except ValueError:
        raise InvalidConfiguration(
            f'{join.node}: its pod CIDR is "{join.subnet}", and must be an IPv4 range '
            "such as 10.244.3.0/24.",
            "Configure an IPv4 pod CIDR in the cluster, first in the list.",
        ) from None
    if subnet.prefixlen > _MAX_PREFIX_LENGTH:
        raise InvalidConfiguration(
            f"{join.node}: its pod CIDR {subnet} is too small for a node.",
            f"Assign nodes a pod CIDR of /{_MAX_PREFIX_LENGTH} or larger.",
        )
    return subnet

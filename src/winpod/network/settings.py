"""Where the network of pods comes from: a directory of CNI configurations, or a default of ours."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from winpod.network.configuration import DEFAULT_BRIDGE, DEFAULT_SUBNETS
from winpod.network.plugins import DEFAULT_DIRECTORIES
from winpod.windows.reading import At, InvalidField

Subnet = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """`cni` holds the networks; without it there is one of ours, of these subnets.

    With no subnets there is none until a node tells its own. What is in the `cluster` is reached
    under a pod's own address.
    """

    cni: Path | None = None
    plugins: tuple[Path, ...] = DEFAULT_DIRECTORIES
    subnets: tuple[Subnet, ...] = DEFAULT_SUBNETS
    bridge: str = DEFAULT_BRIDGE
    cluster: Subnet | None = None


def read_network_settings(table: At) -> NetworkSettings:
    """The section `[network]`."""
    table.allow("cni", "plugins", "subnets")
    default = NetworkSettings()
    cni, subnets = table.get("cni"), table.get("subnets")
    if cni and subnets:
        raise InvalidField(subnets.path, "is for the default network, and network.cni names others")
    return NetworkSettings(
        Path(cni.text()) if cni.text() else None,
        tuple(map(Path, table.get("plugins").texts())) or default.plugins,
        tuple(_subnet(at) for at in subnets.items()) or default.subnets,
    )


def _subnet(at: At) -> Subnet:
    try:
        return ip_network(at.text())
    except ValueError as error:
        raise InvalidField(at.path, f"is no subnet: {error}") from None

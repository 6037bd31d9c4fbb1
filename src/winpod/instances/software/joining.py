"""How one instance joins a cluster, and what the cluster has given it since."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Joining:
    """`authority` is the cluster's, as PEM. `address` is where the instance is reached.

    `token` is what it joins with, and not needed once it has. `subnet` is the range of its pods,
    which a cluster gives only to a Node that is there.
    """

    api_server: str
    authority: str
    node: str
    address: str = ""
    token: str = field(default="", repr=False)
    subnet: str = ""

    @property
    def ip(self) -> str:
        """Its address where that is one and no name."""
        try:
            return str(ipaddress.ip_address(self.address))
        except ValueError:
            return ""

"""Rules of the packet filter: the one of a network, and those that plugins leave behind.

The bridge and ptp plugins find a pod's masquerading rules by the addresses of its interface. Once
namespace or interface are gone they leave the rules for good; but each carries the ids of network
and sandbox in its comment, and by that it is found here.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import shlex

from winpod.network.configuration import Network
from winpod.network.errors import PluginFailed
from winpod.network.plugins import Plugins

_FAMILIES = {4: "iptables", 6: "ip6tables"}
_CHAIN_OF_A_SANDBOX = re.compile(r"CNI-(DN-)?[0-9a-f]+")


async def masquerade(plugins: Plugins, network: Network) -> None:
    """Pods of the network reach the world under an address of the host, by one rule a subnet."""
    for subnet in network.subnets:
        version = ipaddress.ip_network(subnet, strict=False).version
        table = (_FAMILIES[version], "--wait", "--table", "nat")
        comment = ("-m", "comment", "--comment", f"winpod network {network.name}")
        within = network.cluster or subnet
        not_within = ("!", "--destination", within, *comment, "-j", "MASQUERADE")
        rule = ("POSTROUTING", "--source", subnet, *not_within)
        try:
            if (await plugins.tool(*table, "--check", *rule)).code == 0:
                continue
            made = await plugins.tool(*table, "--append", *rule)
        except FileNotFoundError as error:
            raise PluginFailed(
                f'Pods of network "{network.name}" cannot be led to the world: there is no '
                f"{_FAMILIES[version]}.",
                "Install Debian's iptables.",
            ) from error
        if made.code != 0:
            raise PluginFailed(
                f'Pods of network "{network.name}" cannot be led to the world: '
                f"{made.errors.decode(errors='replace').strip()}."
            )


async def remove_rules(plugins: Plugins, network: str, container_id: str) -> None:
    """Every rule and chain whose comment names this sandbox in this network."""
    mark = f'name: "{network}" id: "{container_id}"'
    for tool in _FAMILIES.values():
        try:
            saved = await plugins.tool(f"{tool}-save", "--table", "nat")
        except FileNotFoundError:
            continue
        script = _removal(saved.output.decode(errors="replace"), mark)
        if script:
            removed = await plugins.tool(f"{tool}-restore", "--noflush", "--wait", given=script)
            if removed.code != 0:
                raise PluginFailed(
                    f"Packet filter rules of sandbox {container_id} cannot be removed: "
                    f"{removed.errors.decode(errors='replace').strip()}."
                )


def _removal(saved: str, mark: str) -> str:
    """What takes the marked rules, and the chains they lead to, out of a saved table."""
    rules, chains = [], []
    for line in saved.splitlines():
        words = shlex.split(line) if line.startswith("-A ") else []
        if any(mark in word for word in words):
            rules.append("-D " + line.removeprefix("-A "))
            chains += [
                target
                for flag, target in itertools.pairwise(words)
                if flag == "-j" and _CHAIN_OF_A_SANDBOX.fullmatch(target)
            ]
    removals = [line for chain in dict.fromkeys(chains) for line in (f"-F {chain}", f"-X {chain}")]
    return "\n".join(["*nat", *rules, *removals, "COMMIT", ""]) if rules else ""

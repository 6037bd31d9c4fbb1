"""An instance that never answers again: its Node goes, and what is on the machine stays there.

Nobody can be asked which Node it was, so it is the Windows Node that is at its address; and one
that still is ready belongs to a machine that lives.
"""

from __future__ import annotations

from winpod.instances.cluster.addresses import addresses_of
from winpod.instances.cluster.nodes import is_at, is_ready
from winpod.instances.errors import NOT_REACHED, InstanceUnfit
from winpod.instances.laptop.hosting_cluster import Cluster, refuse_operators_own
from winpod.instances.remote.ssh import Host
from winpod.windows.errors import NotFound, WinpodError

STAYS = r"what is on the machine stays there: services, C:\k and C:\var"


async def remove_dead(host: Host, cluster: Cluster) -> str:
    await refuse_operators_own(cluster, host)
    await _refuse_living(host)
    addresses = await _addresses(host)
    here = [node for node in await cluster.nodes.windows() if is_at(node, addresses)]
    if not here:
        raise NotFound(
            f"{host.name}: no Windows Node of the cluster is at {', '.join(addresses)}.",
            "If it had another address, delete its Node yourself: kubectl delete node NAME",
        )
    names = ", ".join(node.metadata.name for node in here)
    if any(is_ready(node) for node in here):
        raise InstanceUnfit(
            f"{host.name}: its Node {names} is ready, so the machine lives.",
            "See why it does not answer by SSH, or wait until the Node is not ready.",
        )
    for node in here:
        await cluster.nodes.delete(node.metadata.name)
    return f"its Node {names} is deleted; {STAYS}"


async def _refuse_living(host: Host) -> None:
    try:
        await host.connect()
    except NOT_REACHED:
        return
    raise InstanceUnfit(
        f"{host.name}: it answers.", "Remove it without --dead: it is cleaned then."
    )


async def _addresses(host: Host) -> tuple[str, ...]:
    """A name that nobody knows any more is still a name that a Node may have."""
    login = host.login
    try:
        return await addresses_of(host.name, login.address, login.port)
    except WinpodError:
        return (login.address,)

"""What is done about one instance, deed by deed; `next_deed` says which.

That a change has begun is written into the status before anything is changed, and that the Node is
cordoned by us before it is. So whoever goes on after a kill knows what to take back.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from winpod.cluster.custom_resources import stamp
from winpod.instances.cluster.nodes import is_ready
from winpod.instances.cluster.resource import Status, WindowsInstance
from winpod.instances.cluster.tokens import with_token
from winpod.instances.errors import InstanceUnfit
from winpod.instances.operator.care import Care
from winpod.instances.operator.looking import Seen, emptied_since, save, summary
from winpod.instances.operator.reaching import PinnedKey, reach
from winpod.instances.operator.telling import Phase
from winpod.instances.paths import BOOTSTRAP_KUBECONFIG
from winpod.instances.remote import applying
from winpod.instances.remote.holding import holding
from winpod.instances.remote.ssh import Host
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.next_deed import Deed, Situation, disturbs_pods
from winpod.instances.rules.state import State
from winpod.instances.rules.stopping import runs_on_docker
from winpod.windows.errors import WinpodError

_log = logging.getLogger(__name__)


class NodeLate(WinpodError):
    """Its Node did not register, or was not ready, within its time."""

    code = "DEADLINE_EXCEEDED"

    def __init__(self, instance: str, seconds: float, awaited: str) -> None:
        super().__init__(
            f"{instance}: after {seconds:g} s it was still not so: {awaited}.",
            r"See the kubelet's log in C:\var\log\kubelet, or `winpod instance gather`.",
        )


class DrainLate(WinpodError):
    """Its Node, which may be as ready as ever, was not empty within its time."""

    code = "DEADLINE_EXCEEDED"

    def __init__(self, instance: str, node: str, seconds: float, awaited: str) -> None:
        super().__init__(
            f"{instance}: its Node {node} was not empty after {seconds:g} s: {awaited}.",
            "Loosen the disruption budget, or end these pods yourself.",
        )


@dataclass(frozen=True, slots=True)
class Case:
    """`waited` is for how many seconds nothing but this deed was to be done."""

    instance: WindowsInstance
    seen: Seen
    now: Situation
    why: str
    waited: float

    @property
    def node(self) -> str:
        return self.now.node.name if self.now.node else ""


@dataclass(frozen=True, slots=True)
class After:
    """Seconds until it is decided anew, and whether the instance is to be read again for that."""

    seconds: float = 0.0
    is_read_again: bool = False


_AT_REST = After(30.0)


class Deeds:
    """`_beat` is the last sign of life of a kubelet that was changed; None where nobody knows."""

    def __init__(self, care: Care) -> None:
        self._beat: str | None = None
        self._care = care
        self._deeds: Mapping[Deed, Callable[[Case], Awaitable[After]]] = {
            Deed.REST: self._rest,
            Deed.WAIT: self._wait,
            Deed.REFUSE: self._refuse,
            Deed.CORDON: self._cordon,
            Deed.DRAIN: self._drain,
            Deed.REPLACE: self._replace,
            Deed.APPLY: self._apply,
            Deed.AWAIT_NODE: self._await_node,
            Deed.UNCORDON: self._uncordon,
            Deed.REMOVE: self._remove,
            Deed.DELETE_NODE: self._delete_node,
            Deed.LET_GO: self._let_go,
        }

    async def do(self, deed: Deed, case: Case) -> After:
        return await self._deeds[deed](case)

    async def beat(self, instance: WindowsInstance, seen: Seen) -> str:
        """The sign of life that only a newer one counts beside, or nothing where any counts.

        Whoever goes on with a change that another has made does not know when the kubelet was
        stopped: it has to be heard of from now on.
        """
        if self._beat is None and instance.status.is_changing and not seen.steps:
            self._beat = await self._care.nodes.beat(instance.status.node)
        return self._beat or ""

    async def let_go(self, instance: WindowsInstance, why: str) -> None:
        self._care.turns.withdraw(instance.name)
        self._care.tokens.forget(instance.name)
        self._care.tell(instance, "InstanceRemoved", why)
        await self._care.objects.let_go(instance.name)

    async def forget(self, instance: WindowsInstance) -> None:
        """A Node that is ready is a machine's that lives, and stays with it."""
        status, said = instance.status, "it is left as it is, as asked"
        node = await self._care.nodes.get(status.node)
        if node and node.metadata.uid == status.node_uid and not is_ready(node):
            await self._care.nodes.delete(status.node)
            said += f"; its Node {status.node}, which was not ready, is deleted"
        await self.let_go(instance, said)

    async def _rest(self, case: Case) -> After:
        instance, care = case.instance, self._care
        if instance.status.phase != Phase.READY:
            said = f"it is the node {case.node}, of version {case.seen.state.version}"
            care.tell(instance, "InstanceReady", said)
        care.turns.withdraw(instance.name)
        care.tokens.forget(instance.name)
        self._beat = ""

        def change(status: Status) -> None:
            set_phase(status, Phase.READY, "")
            status.failure, status.changing_since, status.tokens = "", "", []

        await save(care, instance, change)
        return _AT_REST

    async def _wait(self, case: Case) -> After:
        said = f"{summary(case.seen.steps)}; {case.why}"
        if case.instance.status.phase != Phase.WAITING:
            self._care.tell(case.instance, "InstanceWaiting", said)
        await self._phase(case, Phase.WAITING, said)
        return After(self._care.soon)

    async def _refuse(self, case: Case) -> After:
        raise InstanceUnfit(
            f"{case.instance.name}: {case.why}.",
            "Give the instance another host name, or remove that node.",
        )

    async def _cordon(self, case: Case) -> After:
        await self._begin(case)
        await save(self._care, case.instance, lambda status: setattr(status, "is_cordoned", True))
        await self._care.nodes.set_cordoned(case.node, is_cordoned=True)
        return After()

    async def _drain(self, case: Case) -> After:
        await self._begin(case)
        nodes, node = self._care.nodes, case.now.node
        pods = await nodes.pods_to_leave(node, emptied_since(case.instance)) if node else ()
        refusals = [await nodes.evict(pod) for pod in pods]
        awaited = next((one for one in refusals if one), case.why)
        phase = Phase.REMOVING if case.instance.is_leaving else Phase.DRAINING
        await self._phase(case, phase, awaited)
        patience = self._care.settings().drain_seconds
        if case.waited > patience:
            raise DrainLate(case.instance.name, case.node, patience, awaited)
        return After(self._care.soon)

    async def _replace(self, case: Case) -> After:
        instance, care = case.instance, self._care
        await self._begin(case)
        await self._phase(case, Phase.REPLACING, summary(case.seen.steps))
        said = f"Machine {instance.spec.machine} is deleted, so that a new one is made: "
        care.tell(instance, "InstanceReplaced", said + summary(case.seen.steps))
        await care.machines.delete(instance.spec.machine)
        return _AT_REST

    async def _apply(self, case: Case) -> After:
        instance, care, steps = case.instance, self._care, case.seen.steps
        was_node = case.now.node is not None
        if was_node and disturbs_pods(steps):
            await self._begin(case)
        phase = Phase.CHANGING if instance.status.is_changing else Phase.CONFIGURING
        if instance.status.phase != phase:
            care.tell(instance, f"Instance{phase}", summary(steps))
        await self._phase(case, phase, summary(steps))
        if any(step.target == BOOTSTRAP_KUBECONFIG for step in steps):
            await self._give_token(case)
        self._beat = None
        async with self._holding(instance) as host:
            state = await applying.apply(host, case.seen.desired, _follow(instance.name))
        self._beat = await care.nodes.beat(case.node) if was_node else ""
        care.tell(instance, "InstanceConfigured", what_is_on_it(case.seen.desired, state))
        await self._phase(case, Phase.JOINING, "its services run")
        return After(is_read_again=True)

    @asynccontextmanager
    async def _holding(self, instance: WindowsInstance) -> AsyncIterator[Host]:
        """Nobody else changes it meanwhile."""
        pinned, inputs = PinnedKey(instance.status.host_key), self._care.inputs
        async with (
            self._care.works,
            reach(instance, inputs.keys, inputs.key_problem, pinned) as host,
            holding(host),
        ):
            yield host

    async def _give_token(self, case: Case) -> None:
        """Whose it is, is known before anybody can use it."""
        tokens, name = self._care.tokens, case.instance.name
        public = tokens.of(name).id

        def change(status: Status) -> None:
            status.tokens = with_token(status.tokens, public)

        await save(self._care, case.instance, change)
        await tokens.store(name)

    async def _await_node(self, case: Case) -> After:
        """A node that was ready and is not: the instance is read again, to find out why."""
        was_ready = case.instance.status.phase == Phase.READY
        if was_ready:
            self._care.tell(case.instance, "InstanceNodeNotReady", case.why, is_bad=True)
        await self._phase(case, Phase.JOINING, case.why)
        patience = self._care.settings().join_seconds
        if case.waited > patience:
            raise NodeLate(case.instance.name, patience, case.why)
        return After(self._care.soon, is_read_again=was_ready)

    async def _uncordon(self, case: Case) -> After:
        await self._care.nodes.set_cordoned(case.node, is_cordoned=False)
        await save(self._care, case.instance, lambda status: setattr(status, "is_cordoned", False))
        return After()

    async def _remove(self, case: Case) -> After:
        instance, care = case.instance, self._care
        await self._phase(case, Phase.REMOVING, summary(case.seen.steps))
        care.tell(instance, "InstanceRemoving", summary(case.seen.steps))
        async with self._holding(instance) as host:
            await applying.remove(host, case.seen.desired, _follow(instance.name))
        return After(is_read_again=True)

    async def _delete_node(self, case: Case) -> After:
        await self._care.nodes.delete(case.node)
        return After()

    async def _let_go(self, case: Case) -> After:
        await self.let_go(case.instance, "nothing of ours is on it any more")
        return _AT_REST

    async def _begin(self, case: Case) -> None:
        """Not for one that leaves: it takes nobody's turn."""
        instance = case.instance
        if instance.is_leaving or instance.status.is_changing:
            return
        said = summary(case.seen.steps)
        if runs_on_docker(case.seen.state):
            said = f"it moves from Docker to containerd: {said}"
        self._care.tell(instance, "InstanceChangeBegins", said)

        def change(status: Status) -> None:
            set_phase(status, Phase.DRAINING, said)
            status.changing_since = stamp(self._care.clock())

        await save(self._care, instance, change)

    async def _phase(self, case: Case, phase: Phase, message: str) -> None:
        await save(self._care, case.instance, lambda status: set_phase(status, phase, message))


def set_phase(status: Status, phase: Phase, message: str) -> None:
    """A failure stays until the instance is well again, whatever is tried meanwhile."""
    status.phase, status.message = phase, message


def what_is_on_it(desired: Desired, state: State) -> str:
    """A network of ours is whole, and the version written, once the Node has a range."""
    if state.version == desired.version:
        return f"all of version {state.version} is on it"
    return (
        f"all of version {desired.version} is on it but its network, which waits until the "
        "cluster has given its Node a range of addresses"
    )


def _follow(name: str) -> Callable[[str], None]:
    return lambda sentence: _log.info("instance %s: %s", name, sentence)

"""Instances without an operator: the same decisions, made by a command until nothing is left.

What the operator writes into an object's status is known only to this process here, but for one
thing: that a Node is cordoned by us is on the Node. So the next command goes on where one was
stopped.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.addresses import addresses_of
from winpod.instances.cluster.nodes import Leaving, node_now, subnet_of
from winpod.instances.cluster.refusals import asking
from winpod.instances.errors import InstanceUnfit, Unreachable
from winpod.instances.laptop.hosting_cluster import CORDONED, Cluster, refuse_operators_own
from winpod.instances.paths import BOOTSTRAP_KUBECONFIG
from winpod.instances.remote import applying
from winpod.instances.remote.holding import holding
from winpod.instances.remote.rebooting import Tell
from winpod.instances.remote.ssh import Host
from winpod.instances.remote.surveying import identify
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.difference import difference
from winpod.instances.rules.next_deed import (
    Decision,
    Deed,
    NodeNow,
    Situation,
    disturbs_pods,
    next_deed,
)
from winpod.instances.rules.removal import removal
from winpod.instances.rules.rolling import Turn
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Step
from winpod.instances.software.blueprint import blueprint, everything_of_ours
from winpod.instances.software.joining import Joining
from winpod.instances.software.payload import Payload
from winpod.windows.errors import Unavailable, WinpodError

_LOOK_SECONDS = 2.0
_ABOUT_DRAINS = "Loosen the disruption budget, or end these pods yourself."
_ABOUT_NODES = r"See `kubectl describe node`, and the kubelet's log in C:\var\log\kubelet."


class NotInTime(Unavailable):
    """Pods that do not leave, or a Node that does not come."""


class Held(WinpodError):
    """It was not begun with: a change of another failed, and might fail here as well."""

    code = "ABORTED"


class Queue:
    """So many nodes change at a time, and none begins once one has failed."""

    def __init__(self, at_most: int) -> None:
        self._places = asyncio.Semaphore(at_most)
        self._failed = ""

    async def enter(self, instance: str) -> None:
        await self._places.acquire()
        if self._failed:
            self._places.release()
            raise Held(
                f"{instance}: it stays as it is, since the change of {self._failed} failed.",
                "Mend that one, and run the same again.",
            )

    def leave(self, instance: str, *, has_failed: bool) -> None:
        if has_failed:
            self._failed = self._failed or instance
        self._places.release()


@dataclass(frozen=True, slots=True)
class Wish:
    """What an instance should be: a node of a cluster, or, without a payload, nothing of ours."""

    cluster: Cluster
    settings: InstanceSettings
    payload: Payload | None
    queue: Queue


class ByHand:
    """One instance, from what it is to what is wished."""

    def __init__(self, host: Host, wish: Wish, tell: Tell) -> None:
        self.host = host
        self.wish = wish
        self.tell = tell
        self._known: State | None = None
        self._addresses: tuple[str, ...] = ()
        self._cordoned_since = ""
        self._has_turn = False
        self._has_token = False
        self._beat = ""
        self._waits: tuple[Deed, float, str] | None = None

    @property
    def is_leaving(self) -> bool:
        return self.wish.payload is None

    async def plan(self) -> tuple[Step, ...]:
        """The steps as they are now; nothing is changed, and no token is given."""
        await self._meet()
        with asking(self.host.name, "look at its Node"):
            desired = await self._desired()
        return self._steps(await applying.read(self.host, desired), desired)

    async def run(self) -> State:
        """Until nothing is left to be done."""
        with asking(self.host.name, "see whether an operator looks after it"):
            await refuse_operators_own(self.wish.cluster, self.host)
        has_failed = True
        try:
            with asking(self.host.name, "look at it and at its Node"):
                async with holding(self.host):
                    state = await self._run()
            has_failed = False
            return state
        except Unreachable as error:
            if self.is_leaving:
                error.advice += " If it will never answer again, --dead deletes its Node."
            raise
        finally:
            if self._has_turn:
                self.wish.queue.leave(self.host.name, has_failed=has_failed)

    async def _run(self) -> State:
        await self._meet()
        desired = await self._desired()
        state = await applying.read(self.host, desired)
        while True:
            before, desired = desired, await self._desired()
            if desired != before:
                state = await applying.read(self.host, desired)
            steps = self._steps(state, desired)
            node = await self._node()
            if node and not self.is_leaving and disturbs_pods(steps):
                await self._take_turn()
            pods: tuple[Leaving, ...] = ()
            if node and node.is_cordoned:
                pods = await self.wish.cluster.nodes.pods_to_leave(node, self._cordoned_since)
            now = Situation(
                steps,
                node,
                len(pods),
                Turn(True),
                is_leaving=self.is_leaving,
                is_cordoned_by_us=bool(self._cordoned_since),
            )
            decision = next_deed(now)
            if decision.deed in (Deed.REST, Deed.LET_GO):
                return state
            if decision.deed in (Deed.APPLY, Deed.REMOVE):
                state = self._known = await self._change(desired, steps, had_node=node is not None)
            else:
                with asking(self.host.name, decision.deed):
                    await self._advance(decision, pods)

    async def _take_turn(self) -> None:
        if not self._has_turn:
            await self.wish.queue.enter(self.host.name)
            self._has_turn = True

    async def _advance(self, decision: Decision, pods: tuple[Leaving, ...]) -> None:
        cluster, name, settings = self.wish.cluster, self._name, self.wish.settings
        match decision.deed:
            case Deed.REFUSE:
                raise InstanceUnfit(
                    f"{self.host.name}: {decision.why}.",
                    "Give the instance another host name, or remove that node.",
                )
            case Deed.CORDON:
                await cluster.set_cordoned(name, is_cordoned=True)
                self.tell(f"the node {name} is cordoned")
            case Deed.DRAIN:
                await self._wait(decision, settings.drain_seconds)
                for why in [await cluster.nodes.evict(pod) for pod in pods]:
                    if why:
                        self.tell(why)
            case Deed.AWAIT_NODE:
                await self._wait(decision, settings.join_seconds)
                await cluster.approve(self.host.name, name, self._addresses)
            case Deed.UNCORDON:
                await cluster.set_cordoned(name, is_cordoned=False)
                self.tell(f"the node {name} is uncordoned")
            case Deed.DELETE_NODE:
                await cluster.nodes.delete(name)
                self.tell(f"the node {name} is deleted")

    async def _change(self, desired: Desired, steps: tuple[Step, ...], *, had_node: bool) -> State:
        if self.is_leaving:
            return await applying.remove(self.host, desired, self.tell)
        if any(step.target == BOOTSTRAP_KUBECONFIG for step in steps):
            with asking(self.host.name, "give it a token to join with"):
                await self.wish.cluster.give_token(self.host.name)
            self._has_token = True
        state = await applying.apply(self.host, desired, self.tell)
        self._beat = await self.wish.cluster.nodes.beat(self._name) if had_node else ""
        return state

    async def _wait(self, decision: Decision, seconds: float) -> None:
        now = time.monotonic()
        if self._waits is None or self._waits[0] is not decision.deed:
            self._waits = (decision.deed, now, "")
        deed, since, told = self._waits
        if decision.why != told:
            self.tell(decision.why)
            self._waits = (deed, since, decision.why)
        if now - since > seconds:
            raise NotInTime(
                f"{self.host.name}: after {now - since:.0f} seconds {decision.why}.",
                _ABOUT_DRAINS if deed is Deed.DRAIN else _ABOUT_NODES,
            )
        await asyncio.sleep(_LOOK_SECONDS)

    async def _meet(self) -> None:
        login = self.host.login
        self._known = await identify(self.host)
        self._addresses = await addresses_of(self.host.name, login.address, login.port)

    @property
    def _name(self) -> str:
        return self._known.hostname.lower() if self._known else ""

    async def _node(self) -> NodeNow | None:
        nodes = self.wish.cluster.nodes
        found = await nodes.get(self._name)
        if found is None:
            return None
        self._cordoned_since = found.metadata.annotations.get(CORDONED, "")
        is_stale = bool(self._beat) and await nodes.beat(self._name) == self._beat
        return node_now(found, self._addresses, is_own=self._has_token, is_stale=is_stale)

    async def _desired(self) -> Desired:
        wish, known = self.wish, self._known
        if wish.payload is None or known is None:
            return everything_of_ours(wish.settings)
        node = await wish.cluster.nodes.get(self._name)
        joining = Joining(
            wish.cluster.place.url,
            wish.cluster.place.authority,
            node=self._name,
            address=self.host.login.address,
            token=wish.cluster.tokens.of(self.host.name).text,
            subnet=subnet_of(node),
        )
        return blueprint(wish.settings, wish.payload, known.build, joining)

    def _steps(self, state: State, desired: Desired) -> tuple[Step, ...]:
        rules = removal if self.is_leaving else difference
        return applying.steps_of(self.host, rules, state, desired)

"""Instances without an operator: the CLI runs the same decisions until nothing is left to do.

State that an operator keeps in the object's status lives in this process only, except for winpod's
cordon, which is an annotation of the Node. The next run continues where one was stopped.

Abandoning deletes the Node of an instance that never answers again and leaves the machine as it is.
The Node is identified by its address, and must not be ready.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from winpod.errors import NotFound, Unavailable, WinpodError
from winpod.instances.cluster.inventory import addresses_of
from winpod.instances.cluster.nodes import (
    EvictedPod,
    api_error_context,
    is_at,
    observe_node,
    subnet_of,
)
from winpod.instances.errors import CONNECT_ERRORS, InstanceUnreachable, InstanceUnsuitable
from winpod.instances.paths import BOOTSTRAP_KUBECONFIG
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.diff import diff, removal_steps
from winpod.instances.planner.next_action import (
    Action,
    NextAction,
    ObservedInstance,
    ObservedNode,
    disturbs_pods,
    next_action,
)
from winpod.instances.planner.rollout import RolloutSlot
from winpod.instances.planner.state import InstanceState
from winpod.instances.planner.steps import Step
from winpod.instances.software.desired_state import build_desired_state, desired_removal
from winpod.instances.software.kubelet_config import JoinConfig
from winpod.instances.software.payload import Payload
from winpod.instances.ssh import converge
from winpod.instances.ssh.facts import identify
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.reboot import ProgressCallback
from winpod.instances.ssh.remote_lock import remote_lock
from winpod.instances.standalone.cluster import StandaloneCluster, refuse_operator_managed
from winpod.labels import CORDONED_ANNOTATION
from winpod.operator.instance_settings import InstanceSettings

_POLL_SECONDS = 2.0
_DRAIN_HINT = "Relax the disruption budget, or delete these pods."
_NODE_HINT = r"Check `kubectl describe node`, and the kubelet's log in C:\var\log\kubelet."


class StandaloneTimeout(Unavailable):
    """Pods could not be evicted, or a Node did not appear, in time."""


class RolloutHalted(WinpodError):
    """Not started, because the update of another instance failed and might fail here as well."""

    code = "ABORTED"


class RolloutQueue:
    """Limits concurrent updates; none starts after a failure."""

    def __init__(self, at_most: int) -> None:
        self._slots = asyncio.Semaphore(at_most)
        self._failed = ""

    async def acquire(self, instance: str) -> None:
        await self._slots.acquire()
        if self._failed:
            self._slots.release()
            raise RolloutHalted(
                f"{instance}: not updated, because the update of {self._failed} failed.",
                "Fix that one, and run the command again.",
            )

    def release(self, instance: str, *, has_failed: bool) -> None:
        if has_failed:
            self._failed = self._failed or instance
        self._slots.release()


@dataclass(frozen=True, slots=True)
class StandaloneGoal:
    """The goal: a node of a cluster or, without a payload, a clean machine."""

    cluster: StandaloneCluster
    settings: InstanceSettings
    payload: Payload | None
    queue: RolloutQueue


class StandaloneRunner:
    """Brings one instance to the goal."""

    def __init__(self, host: SshHost, goal: StandaloneGoal, progress: ProgressCallback) -> None:
        self.host = host
        self.goal = goal
        self.progress = progress
        self._known: InstanceState | None = None
        self._addresses: tuple[str, ...] = ()
        self._cordoned_since = ""
        self._has_slot = False
        self._has_token = False
        self._last_heartbeat = ""
        self._waiting: tuple[Action, float, str] | None = None

    @property
    def is_removing(self) -> bool:
        return self.goal.payload is None

    async def plan(self) -> tuple[Step, ...]:
        """Return the current steps; nothing is changed, and no token is created."""
        await self._identify()
        with api_error_context(self.host.name, "observe its Node"):
            desired = await self._desired()
        return self._steps(await converge.read_state(self.host, desired), desired)

    async def run(self) -> InstanceState:
        """Run until nothing is left to do."""
        with api_error_context(self.host.name, "check whether an operator manages it"):
            await refuse_operator_managed(self.goal.cluster, self.host)
        has_failed = True
        try:
            with api_error_context(self.host.name, "observe it and its Node"):
                async with remote_lock(self.host):
                    state = await self._run()
            has_failed = False
            return state
        except InstanceUnreachable as error:
            if self.is_removing:
                error.hint += " If it is gone for good, --dead deletes its Node."
            raise
        finally:
            if self._has_slot:
                self.goal.queue.release(self.host.name, has_failed=has_failed)

    async def _run(self) -> InstanceState:
        await self._identify()
        desired = await self._desired()
        state = await converge.read_state(self.host, desired)
        while True:
            previous, desired = desired, await self._desired()
            if desired != previous:
                state = await converge.read_state(self.host, desired)
            steps = self._steps(state, desired)
            node = await self._node()
            if node and not self.is_removing and disturbs_pods(steps):
                await self._acquire_slot()
            pods: tuple[EvictedPod, ...] = ()
            if node and node.is_cordoned:
                pods = await self.goal.cluster.nodes.pods_to_evict(node, self._cordoned_since)
            observed = ObservedInstance(
                steps,
                node,
                len(pods),
                RolloutSlot(True),
                is_deleting=self.is_removing,
                is_cordoned_by_us=bool(self._cordoned_since),
            )
            decision = next_action(observed)
            if decision.action in (Action.NONE, Action.RELEASE):
                return state
            if decision.action in (Action.APPLY, Action.REMOVE):
                state = self._known = await self._change(desired, steps, had_node=node is not None)
            else:
                with api_error_context(self.host.name, decision.action):
                    await self._advance(decision, pods)

    async def _acquire_slot(self) -> None:
        if not self._has_slot:
            await self.goal.queue.acquire(self.host.name)
            self._has_slot = True

    async def _advance(self, decision: NextAction, pods: tuple[EvictedPod, ...]) -> None:
        cluster, name, settings = self.goal.cluster, self._name, self.goal.settings
        match decision.action:
            case Action.REFUSE:
                raise InstanceUnsuitable(
                    f"{self.host.name}: {decision.why}.",
                    "Rename the host of the instance, or remove that node.",
                )
            case Action.CORDON:
                await cluster.set_cordoned(name, is_cordoned=True)
                self.progress(f"cordoned node {name}")
            case Action.DRAIN:
                await self._wait(decision, settings.drain_seconds)
                for why in [await cluster.nodes.evict(pod) for pod in pods]:
                    if why:
                        self.progress(why)
            case Action.WAIT_FOR_NODE:
                await self._wait(decision, settings.join_seconds)
                await cluster.approve(self.host.name, name, self._addresses)
            case Action.UNCORDON:
                await cluster.set_cordoned(name, is_cordoned=False)
                self.progress(f"uncordoned node {name}")
            case Action.DELETE_NODE:
                await cluster.nodes.delete(name)
                self.progress(f"deleted node {name}")

    async def _change(
        self, desired: DesiredState, steps: tuple[Step, ...], *, had_node: bool
    ) -> InstanceState:
        if self.is_removing:
            return await converge.remove(self.host, desired, self.progress)
        if any(step.target == BOOTSTRAP_KUBECONFIG for step in steps):
            with api_error_context(self.host.name, "create its bootstrap token"):
                await self.goal.cluster.create_token(self.host.name)
            self._has_token = True
        state = await converge.converge(self.host, desired, self.progress)
        self._last_heartbeat = (
            await self.goal.cluster.nodes.heartbeat(self._name) if had_node else ""
        )
        return state

    async def _wait(self, decision: NextAction, seconds: float) -> None:
        now = time.monotonic()
        if self._waiting is None or self._waiting[0] is not decision.action:
            self._waiting = (decision.action, now, "")
        action, since, reported = self._waiting
        if decision.why != reported:
            self.progress(decision.why)
            self._waiting = (action, since, decision.why)
        if now - since > seconds:
            raise StandaloneTimeout(
                f"{self.host.name}: after {now - since:.0f} seconds {decision.why}.",
                _DRAIN_HINT if action is Action.DRAIN else _NODE_HINT,
            )
        await asyncio.sleep(_POLL_SECONDS)

    async def _identify(self) -> None:
        login = self.host.login
        self._known = await identify(self.host)
        self._addresses = await addresses_of(self.host.name, login.address, login.port)

    @property
    def _name(self) -> str:
        return self._known.hostname.lower() if self._known else ""

    async def _node(self) -> ObservedNode | None:
        nodes = self.goal.cluster.nodes
        node = await nodes.get(self._name)
        if node is None:
            return None
        self._cordoned_since = node.metadata.annotations.get(CORDONED_ANNOTATION, "")
        is_stale = (
            bool(self._last_heartbeat) and await nodes.heartbeat(self._name) == self._last_heartbeat
        )
        return observe_node(node, self._addresses, is_own=self._has_token, is_stale=is_stale)

    async def _desired(self) -> DesiredState:
        goal, state = self.goal, self._known
        if goal.payload is None or state is None:
            return desired_removal(goal.settings)
        node = await goal.cluster.nodes.get(self._name)
        join = JoinConfig(
            goal.cluster.endpoint.url,
            goal.cluster.endpoint.authority,
            node=self._name,
            address=self.host.login.address,
            token=goal.cluster.tokens.get_or_create(self.host.name).text,
            subnet=subnet_of(node),
        )
        return build_desired_state(goal.settings, goal.payload, state.build, join)

    def _steps(self, state: InstanceState, desired: DesiredState) -> tuple[Step, ...]:
        plan_steps = removal_steps if self.is_removing else diff
        return converge.next_steps(self.host, plan_steps, state, desired)


LEFTOVER_NOTE = r"the machine is left as it is, with services, C:\k and C:\var"


async def abandon_instance(host: SshHost, cluster: StandaloneCluster) -> str:
    await refuse_operator_managed(cluster, host)
    await _reject_reachable(host)
    addresses = await _addresses(host)
    matching = [node for node in await cluster.nodes.windows() if is_at(node, addresses)]
    if not matching:
        raise NotFound(
            f"{host.name}: no Windows Node of the cluster has the address {', '.join(addresses)}.",
            "If it had another address, delete its Node: kubectl delete node NAME",
        )
    names = ", ".join(node.metadata.name for node in matching)
    if any(node.is_ready for node in matching):
        raise InstanceUnsuitable(
            f"{host.name}: its Node {names} is ready, so the machine is running.",
            "Check why SSH does not answer, or wait until the Node is not ready.",
        )
    for node in matching:
        await cluster.nodes.delete(node.metadata.name)
    return f"its Node {names} is deleted; {LEFTOVER_NOTE}"


async def _reject_reachable(host: SshHost) -> None:
    try:
        await host.connect()
    except CONNECT_ERRORS:
        return
    raise InstanceUnsuitable(
        f"{host.name}: it can be reached.", "Remove it without --dead, to clean it."
    )


async def _addresses(host: SshHost) -> tuple[str, ...]:
    """Return its addresses; a name that no longer resolves may still be an address of a Node."""
    login = host.login
    try:
        return await addresses_of(host.name, login.address, login.port)
    except WinpodError:
        return (login.address,)

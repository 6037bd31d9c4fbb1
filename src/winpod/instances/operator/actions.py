"""Actions on one instance, as chosen by `next_action`.

The status records that a change has started before anything is changed, and that winpod cordons the
Node before it does. After a crash, the next operator knows what to revert.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from winpod.clock import format_timestamp
from winpod.errors import WinpodError
from winpod.instances.cluster.bootstrap_tokens import with_token
from winpod.instances.cluster.resource import InstanceStatus, WindowsInstance
from winpod.instances.errors import InstanceUnsuitable
from winpod.instances.operator.conditions import InstancePhase
from winpod.instances.operator.connect import PinnedKey, connect
from winpod.instances.operator.context import OperatorContext
from winpod.instances.operator.observe import Observation, cordoned_since, save_status, summary
from winpod.instances.paths import BOOTSTRAP_KUBECONFIG
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.next_action import Action, ObservedInstance, disturbs_pods
from winpod.instances.planner.state import InstanceState, runs_on_docker
from winpod.instances.ssh import converge
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.remote_lock import remote_lock

_log = logging.getLogger(__name__)


class NodeJoinTimeout(WinpodError):
    """The Node did not register, or did not become ready, in time."""

    code = "DEADLINE_EXCEEDED"

    def __init__(self, instance: str, seconds: float, awaited: str) -> None:
        super().__init__(
            f"{instance}: not a ready node after {seconds:g} s: {awaited}.",
            r"Check the kubelet's log in C:\var\log\kubelet, or `winpod instance gather`.",
        )


class DrainTimeout(WinpodError):
    """The Node could not be drained in time; it may still be ready."""

    code = "DEADLINE_EXCEEDED"

    def __init__(self, instance: str, node: str, seconds: float, awaited: str) -> None:
        super().__init__(
            f"{instance}: its Node {node} was not drained after {seconds:g} s: {awaited}.",
            "Relax the disruption budget, or delete these pods.",
        )


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Input of an action; `waited` is how many seconds this action has been pending."""

    instance: WindowsInstance
    observation: Observation
    observed: ObservedInstance
    why: str
    waited: float

    @property
    def node(self) -> str:
        return self.observed.node.name if self.observed.node else ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Seconds until the next decision, and whether to observe the instance again before."""

    seconds: float = 0.0
    observe_again: bool = False


_IDLE = Requeue(30.0)


class ActionRunner:
    """Runs actions. `_last_heartbeat` is that of a changed kubelet; None if unknown."""

    def __init__(self, context: OperatorContext) -> None:
        self._last_heartbeat: str | None = None
        self._context = context
        self._actions: Mapping[Action, Callable[[ActionContext], Awaitable[Requeue]]] = {
            Action.NONE: self._finish,
            Action.WAIT: self._wait,
            Action.REFUSE: self._refuse,
            Action.CORDON: self._cordon,
            Action.DRAIN: self._drain,
            Action.REPLACE: self._replace,
            Action.APPLY: self._apply,
            Action.WAIT_FOR_NODE: self._await_node,
            Action.UNCORDON: self._uncordon,
            Action.REMOVE: self._remove,
            Action.DELETE_NODE: self._delete_node,
            Action.RELEASE: self._release,
        }

    async def run(self, action: Action, case: ActionContext) -> Requeue:
        return await self._actions[action](case)

    async def heartbeat(self, instance: WindowsInstance, observation: Observation) -> str:
        """Return the heartbeat that must be followed by a newer one; empty if any counts.

        An operator that continues a change of another does not know when the kubelet was stopped,
        so it requires a heartbeat from now on.
        """
        if self._last_heartbeat is None and instance.status.is_changing and not observation.steps:
            self._last_heartbeat = await self._context.nodes.heartbeat(instance.status.node)
        return self._last_heartbeat or ""

    async def release(self, instance: WindowsInstance, why: str) -> None:
        self._context.rollout.release_slot(instance.name)
        self._context.tokens.delete(instance.name)
        self._context.record_event(instance, "InstanceRemoved", why)
        await self._context.objects.remove_finalizer(instance.name)

    async def abandon(self, instance: WindowsInstance) -> None:
        """Release an instance without cleaning it; its Node is deleted unless it is ready."""
        status, message = instance.status, "released as it is, as requested"
        node = await self._context.nodes.get(status.node)
        if node and node.metadata.uid == status.node_uid and not node.is_ready:
            await self._context.nodes.delete(status.node)
            message += f"; its Node {status.node}, which was not ready, was deleted"
        await self.release(instance, message)

    async def _finish(self, case: ActionContext) -> Requeue:
        instance, context = case.instance, self._context
        if instance.status.phase != InstancePhase.READY:
            message = f"ready as node {case.node}, version {case.observation.state.version}"
            context.record_event(instance, "InstanceReady", message)
        context.rollout.release_slot(instance.name)
        context.tokens.delete(instance.name)
        self._last_heartbeat = ""

        def change(status: InstanceStatus) -> None:
            set_phase(status, InstancePhase.READY, "")
            status.failure, status.changing_since, status.tokens = "", "", []

        await save_status(context, instance, change)
        return _IDLE

    async def _wait(self, case: ActionContext) -> Requeue:
        message = f"{summary(case.observation.steps)}; {case.why}"
        if case.instance.status.phase != InstancePhase.WAITING:
            self._context.record_event(case.instance, "InstanceWaiting", message)
        await self._phase(case, InstancePhase.WAITING, message)
        return Requeue(self._context.short_delay)

    async def _refuse(self, case: ActionContext) -> Requeue:
        raise InstanceUnsuitable(
            f"{case.instance.name}: {case.why}.",
            "Rename the host of the instance, or remove that node.",
        )

    async def _cordon(self, case: ActionContext) -> Requeue:
        await self._start_change(case)
        await save_status(
            self._context, case.instance, lambda status: setattr(status, "is_cordoned", True)
        )
        await self._context.nodes.set_cordoned(case.node, is_cordoned=True)
        return Requeue()

    async def _drain(self, case: ActionContext) -> Requeue:
        await self._start_change(case)
        nodes, node = self._context.nodes, case.observed.node
        pods = await nodes.pods_to_evict(node, cordoned_since(case.instance)) if node else ()
        refusals = [await nodes.evict(pod) for pod in pods]
        awaited = next((refusal for refusal in refusals if refusal), case.why)
        phase = InstancePhase.REMOVING if case.instance.is_deleting else InstancePhase.DRAINING
        await self._phase(case, phase, awaited)
        limit = self._context.settings().drain_seconds
        if case.waited > limit:
            raise DrainTimeout(case.instance.name, case.node, limit, awaited)
        return Requeue(self._context.short_delay)

    async def _replace(self, case: ActionContext) -> Requeue:
        instance, context = case.instance, self._context
        await self._start_change(case)
        await self._phase(case, InstancePhase.REPLACING, summary(case.observation.steps))
        message = f"Deleting Machine {instance.spec.machine} to replace it: "
        context.record_event(
            instance, "InstanceReplaced", message + summary(case.observation.steps)
        )
        await context.machines.delete(instance.spec.machine)
        return _IDLE

    async def _apply(self, case: ActionContext) -> Requeue:
        instance, context, steps = case.instance, self._context, case.observation.steps
        was_node = case.observed.node is not None
        if was_node and disturbs_pods(steps):
            await self._start_change(case)
        phase = InstancePhase.CHANGING if instance.status.is_changing else InstancePhase.CONFIGURING
        if instance.status.phase != phase:
            context.record_event(instance, f"Instance{phase}", summary(steps))
        await self._phase(case, phase, summary(steps))
        if any(step.target == BOOTSTRAP_KUBECONFIG for step in steps):
            await self._create_token(case)
        self._last_heartbeat = None
        async with self._locked_host(instance) as host:
            state = await converge.converge(
                host, case.observation.desired, _log_progress(instance.name)
            )
        self._last_heartbeat = await context.nodes.heartbeat(case.node) if was_node else ""
        context.record_event(
            instance, "InstanceConfigured", reported_software(case.observation.desired, state)
        )
        await self._phase(case, InstancePhase.JOINING, "its services are running")
        return Requeue(observe_again=True)

    @asynccontextmanager
    async def _locked_host(self, instance: WindowsInstance) -> AsyncIterator[SshHost]:
        """Connect to the instance and hold its lock."""
        pinned, inputs = PinnedKey(instance.status.host_key), self._context.inputs
        async with (
            self._context.change_slots,
            connect(instance, inputs.keys, inputs.key_problem, pinned) as host,
            remote_lock(host),
        ):
            yield host

    async def _create_token(self, case: ActionContext) -> None:
        """Record the token's ID in the status before the token becomes valid."""
        tokens, name = self._context.tokens, case.instance.name
        token_id = tokens.get_or_create(name).id

        def change(status: InstanceStatus) -> None:
            status.tokens = with_token(status.tokens, token_id)

        await save_status(self._context, case.instance, change)
        await tokens.store(name)

    async def _await_node(self, case: ActionContext) -> Requeue:
        """Wait for the Node; if it was ready before, observe again to find the cause."""
        was_ready = case.instance.status.phase == InstancePhase.READY
        if was_ready:
            self._context.record_event(case.instance, "InstanceNodeNotReady", case.why, is_bad=True)
        await self._phase(case, InstancePhase.JOINING, case.why)
        limit = self._context.settings().join_seconds
        if case.waited > limit:
            raise NodeJoinTimeout(case.instance.name, limit, case.why)
        return Requeue(self._context.short_delay, observe_again=was_ready)

    async def _uncordon(self, case: ActionContext) -> Requeue:
        await self._context.nodes.set_cordoned(case.node, is_cordoned=False)
        await save_status(
            self._context, case.instance, lambda status: setattr(status, "is_cordoned", False)
        )
        return Requeue()

    async def _remove(self, case: ActionContext) -> Requeue:
        instance, context = case.instance, self._context
        await self._phase(case, InstancePhase.REMOVING, summary(case.observation.steps))
        context.record_event(instance, "InstanceRemoving", summary(case.observation.steps))
        async with self._locked_host(instance) as host:
            await converge.remove(host, case.observation.desired, _log_progress(instance.name))
        return Requeue(observe_again=True)

    async def _delete_node(self, case: ActionContext) -> Requeue:
        await self._context.nodes.delete(case.node)
        return Requeue()

    async def _release(self, case: ActionContext) -> Requeue:
        await self.release(case.instance, "winpod was removed from it")
        return _IDLE

    async def _start_change(self, case: ActionContext) -> None:
        """Record the start of a change; an instance being deleted needs no slot."""
        instance = case.instance
        if instance.is_deleting or instance.status.is_changing:
            return
        message = summary(case.observation.steps)
        if runs_on_docker(case.observation.state):
            message = f"migration from Docker to containerd: {message}"
        self._context.record_event(instance, "InstanceChangeBegins", message)

        def change(status: InstanceStatus) -> None:
            set_phase(status, InstancePhase.DRAINING, message)
            status.changing_since = format_timestamp(self._context.clock())

        await save_status(self._context, instance, change)

    async def _phase(self, case: ActionContext, phase: InstancePhase, message: str) -> None:
        await save_status(
            self._context, case.instance, lambda status: set_phase(status, phase, message)
        )


def set_phase(status: InstanceStatus, phase: InstancePhase, message: str) -> None:
    """Set phase and message; `failure` stays until the instance is ready again."""
    status.phase, status.message = phase, message


def reported_software(desired: DesiredState, state: InstanceState) -> str:
    """Describe the installed version.

    A managed network is complete, and the version file written, once the Node has a pod CIDR.
    """
    if state.version == desired.version:
        return f"version {state.version} is installed"
    return (
        f"version {desired.version} is installed except for its network, which waits for the "
        "pod CIDR of its Node"
    )


def _log_progress(name: str) -> Callable[[str], None]:
    return lambda message: _log.info("Instance %s: %s", name, message)

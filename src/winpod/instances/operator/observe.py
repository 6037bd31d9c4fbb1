"""Observation of an instance, and its status."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from winpod.errors import WinpodError
from winpod.instances.cluster.nodes import observe_node, subnet_of
from winpod.instances.cluster.resource import InstanceStatus, WindowsInstance
from winpod.instances.errors import InstanceUnsuitable
from winpod.instances.operator.conditions import (
    CONFIGURED,
    CONTAINERD_NOT_RUNNING,
    CONTAINERD_RUNNING,
    NODE_READY,
    REACHABLE,
    find_condition,
)
from winpod.instances.operator.connect import PinnedKey, connect, remove_old_key
from winpod.instances.operator.context import OperatorContext
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.diff import diff, removal_steps
from winpod.instances.planner.next_action import ObservedInstance, ObservedNode, disturbs_pods
from winpod.instances.planner.rollout import RolloutSlot
from winpod.instances.planner.state import CONTAINERD, InstanceState
from winpod.instances.planner.steps import Step
from winpod.instances.ssh import converge
from winpod.instances.ssh.facts import identify
from winpod.k8s.objects import NodeObject


@dataclass(frozen=True, slots=True)
class Observation:
    """An observed state, its time, and the steps to the desired state."""

    state: InstanceState
    desired: DesiredState
    steps: tuple[Step, ...]
    subnet: str
    at: float

    @property
    def age(self) -> float:
        return time.monotonic() - self.at


async def observe(context: OperatorContext, instance: WindowsInstance) -> Observation:
    """Observe the instance and save the result in its status, the host key first."""
    name, status = instance.name, instance.status
    keys, pinned = context.inputs.keys, PinnedKey(status.host_key)
    addresses = await context.addresses(instance)
    async with (
        context.read_slots,
        connect(instance, keys, context.inputs.key_problem, pinned) as host,
    ):
        identity = await identify(host)
        node = identity.hostname.lower()
        _reject_duplicate_name(context, instance, node)
        subnet = subnet_of(await context.nodes.get(node))
        token = context.tokens.get_or_create(name).text
        desired = context.desired_source.desired(instance, identity, token, subnet)
        state = await converge.read_state(host, desired)
        login_key = await remove_old_key(
            host, instance, keys, lambda *event: context.record_event(instance, *event)
        )
    steps = _steps(instance, state, desired)
    is_running = state.runs(CONTAINERD)
    was_running = find_condition(status.conditions, CONTAINERD_RUNNING) == "True"
    if was_running and not is_running and not (status.is_changing or instance.is_deleting):
        message = f"{name}: containerd is not running; it will be started."
        context.record_event(instance, CONTAINERD_NOT_RUNNING, message, is_bad=True)

    def change(status: InstanceStatus) -> None:
        status.host_key, status.login_key = pinned.key, login_key
        status.node, status.addresses = node, list(addresses)
        status.build = str(state.build)
        status.version = state.version
        context.condition(status, REACHABLE, True, "Answers")
        context.condition(
            status, CONTAINERD_RUNNING, is_running, "Running" if is_running else "NotRunning"
        )
        reason = "AllThere" if not steps else "StepsLeft"
        context.condition(status, CONFIGURED, not steps, reason, summary(steps))

    await save_status(context, instance, change)
    return Observation(state, desired, steps, subnet, time.monotonic())


async def observed_instance(
    context: OperatorContext,
    instance: WindowsInstance,
    observation: Observation,
    node_object: NodeObject | None,
    last_heartbeat: str,
) -> ObservedInstance:
    """Return the input of `next_action`.

    `last_heartbeat` is that of a kubelet stopped since; the Node counts as ready only with a newer
    one.
    """
    status = instance.status
    node = await _node(context, instance, node_object, last_heartbeat) if node_object else None
    is_joining = bool(status.tokens) and not status.is_changing
    slot, pods = RolloutSlot(False), 0
    if node and not (instance.is_deleting or is_joining) and disturbs_pods(observation.steps):
        slot = context.rollout.request_slot(instance)
    if node and node.is_cordoned and (slot.is_granted or instance.is_deleting):
        pods = len(await context.nodes.pods_to_evict(node, cordoned_since(instance)))
    return ObservedInstance(
        observation.steps,
        node,
        pods,
        slot,
        instance.is_deleting,
        bool(instance.spec.machine),
        status.is_cordoned,
        is_joining,
    )


def cordoned_since(instance: WindowsInstance) -> str:
    """Return the time since which the cordon keeps new pods away."""
    return instance.metadata.deletion_timestamp or instance.status.changing_since


async def _node(
    context: OperatorContext,
    instance: WindowsInstance,
    node_object: NodeObject,
    last_heartbeat: str,
) -> ObservedNode:
    """Return the observed Node.

    A Node that appeared after the instance got a token for its name is its own.
    """
    status = instance.status
    uid = node_object.metadata.uid
    is_own = uid == status.node_uid or bool(status.tokens)
    is_stale = bool(last_heartbeat) and await context.nodes.heartbeat(status.node) == last_heartbeat
    observed = observe_node(node_object, status.addresses, is_own=is_own, is_stale=is_stale)
    if observed.mismatch:
        return observed

    def change(status: InstanceStatus) -> None:
        status.node_uid, status.runtime = uid, observed.runtime
        reason = "Ready" if observed.is_ready else "NotReady"
        context.condition(status, NODE_READY, observed.is_ready, reason)

    await save_status(context, instance, change)
    return observed


async def save_status(
    context: OperatorContext, instance: WindowsInstance, change: Callable[[InstanceStatus], None]
) -> None:
    if saved := await context.objects.save(instance.name, change):
        instance.status = saved.status


def summary(steps: tuple[Step, ...]) -> str:
    if not steps:
        return ""
    first = str(steps[0])
    return first if len(steps) == 1 else f"{len(steps)} steps, starting with: {first}"


def _reject_duplicate_name(context: OperatorContext, instance: WindowsInstance, node: str) -> None:
    """Reject an instance whose host name belongs to an older instance."""
    for other in context.objects.known.values():
        is_first = _age_order(other) < _age_order(instance) and not other.is_deleting
        if is_first and other.status.node == node and not instance.is_deleting:
            raise InstanceUnsuitable(
                f"{instance.name}: its host name is {node}, and so is that of {other.name}.",
                "Rename one of the hosts: a Node has the name of its host.",
            )


def _age_order(instance: WindowsInstance) -> tuple[str, str]:
    return instance.metadata.creation_timestamp, instance.name


def _steps(
    instance: WindowsInstance, state: InstanceState, desired: DesiredState
) -> tuple[Step, ...]:
    try:
        return removal_steps(state, desired) if instance.is_deleting else diff(state, desired)
    except WinpodError as error:
        error.message = f"{instance.name}: {error.message}"
        raise

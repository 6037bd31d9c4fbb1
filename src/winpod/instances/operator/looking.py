"""An instance read: what is on it, and what that says of it in its status."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from winpod.instances.cluster.nodes import NodeObject, node_now, subnet_of
from winpod.instances.cluster.resource import Status, WindowsInstance
from winpod.instances.errors import InstanceUnfit
from winpod.instances.operator.care import Care
from winpod.instances.operator.reaching import PinnedKey, reach, retire_key
from winpod.instances.operator.telling import (
    CONFIGURED,
    CONTAINERD_NOT_RUNNING,
    CONTAINERD_RUNNING,
    NODE_READY,
    REACHABLE,
    condition_of,
)
from winpod.instances.remote import applying
from winpod.instances.remote.surveying import identify
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.difference import difference
from winpod.instances.rules.next_deed import NodeNow, Situation, disturbs_pods
from winpod.instances.rules.removal import removal
from winpod.instances.rules.rolling import Turn
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Step
from winpod.instances.rules.stopping import CONTAINERD
from winpod.windows.errors import WinpodError


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of it, when, and the steps that lead from there to what is wanted."""

    state: State
    desired: Desired
    steps: tuple[Step, ...]
    subnet: str
    at: float

    @property
    def age(self) -> float:
        return time.monotonic() - self.at


async def look(care: Care, instance: WindowsInstance) -> Seen:
    """What was found is in its status before anything is done about it, its host key first."""
    name, status = instance.name, instance.status
    keys, pinned = care.inputs.keys, PinnedKey(status.host_key)
    addresses = await care.addresses(instance)
    async with care.looks, reach(instance, keys, care.inputs.key_problem, pinned) as host:
        first = await identify(host)
        node = first.hostname.lower()
        _refuse_taken(care, instance, node)
        subnet = subnet_of(await care.nodes.get(node))
        token = care.tokens.of(name).text
        desired = care.wanted.desired(instance, first, token, subnet)
        state = await applying.read(host, desired)
        line = await retire_key(host, instance, keys, lambda *said: care.tell(instance, *said))
    steps = _steps(instance, state, desired)
    runs = state.runs(CONTAINERD)
    was_running = condition_of(status.conditions, CONTAINERD_RUNNING) == "True"
    if was_running and not runs and not (status.is_changing or instance.is_leaving):
        said = f"{name}: containerd is not running; it is started again."
        care.tell(instance, CONTAINERD_NOT_RUNNING, said, is_bad=True)

    def change(status: Status) -> None:
        status.host_key, status.login_key = pinned.key, line
        status.node, status.addresses = node, list(addresses)
        status.build = str(state.build)
        status.version = state.version
        care.condition(status, REACHABLE, True, "Answers")
        care.condition(status, CONTAINERD_RUNNING, runs, "Running" if runs else "NotRunning")
        done = "AllThere" if not steps else "StepsLeft"
        care.condition(status, CONFIGURED, not steps, done, summary(steps))

    await save(care, instance, change)
    return Seen(state, desired, steps, subnet, time.monotonic())


async def situation(
    care: Care, instance: WindowsInstance, seen: Seen, found: NodeObject | None, beat: str
) -> Situation:
    """`beat` is the last sign of life of a kubelet that was stopped since; a newer one counts."""
    status = instance.status
    node = await _node(care, instance, found, beat) if found else None
    is_joining = bool(status.tokens) and not status.is_changing
    turn, pods = Turn(False), 0
    if node and not (instance.is_leaving or is_joining) and disturbs_pods(seen.steps):
        turn = care.turns.ask(instance)
    if node and node.is_cordoned and (turn.is_granted or instance.is_leaving):
        pods = len(await care.nodes.pods_to_leave(node, emptied_since(instance)))
    return Situation(
        seen.steps,
        node,
        pods,
        turn,
        instance.is_leaving,
        bool(instance.spec.machine),
        status.is_cordoned,
        is_joining,
    )


def emptied_since(instance: WindowsInstance) -> str:
    """When nobody was to come any more, so far as a cordon keeps them away."""
    return instance.metadata.deletion_timestamp or instance.status.changing_since


async def _node(care: Care, instance: WindowsInstance, found: NodeObject, beat: str) -> NodeNow:
    """A Node that came after this instance was given a token for that name is its own."""
    status = instance.status
    uid = found.metadata.uid
    is_own = uid == status.node_uid or bool(status.tokens)
    is_stale = bool(beat) and await care.nodes.beat(status.node) == beat
    now = node_now(found, status.addresses, is_own=is_own, is_stale=is_stale)
    if now.stranger:
        return now

    def change(status: Status) -> None:
        status.node_uid, status.runtime = uid, now.runtime
        word = "Ready" if now.is_ready else "NotReady"
        care.condition(status, NODE_READY, now.is_ready, word)

    await save(care, instance, change)
    return now


async def save(care: Care, instance: WindowsInstance, change: Callable[[Status], None]) -> None:
    if saved := await care.objects.save(instance.name, change):
        instance.status = saved.status


def summary(steps: tuple[Step, ...]) -> str:
    if not steps:
        return ""
    first = str(steps[0])
    return first if len(steps) == 1 else f"{len(steps)} steps, the first: {first}"


def _refuse_taken(care: Care, instance: WindowsInstance, node: str) -> None:
    """Of two hosts of one name only the first can be the node of that name."""
    for other in care.objects.known.values():
        is_first = _rank(other) < _rank(instance) and not other.is_leaving
        if is_first and other.status.node == node and not instance.is_leaving:
            raise InstanceUnfit(
                f"{instance.name}: its host name is {node}, and so is that of {other.name}.",
                "Give one of the two another name: a Node has the name of its host.",
            )


def _rank(instance: WindowsInstance) -> tuple[str, str]:
    return instance.metadata.creation_timestamp, instance.name


def _steps(instance: WindowsInstance, state: State, desired: Desired) -> tuple[Step, ...]:
    try:
        return removal(state, desired) if instance.is_leaving else difference(state, desired)
    except WinpodError as error:
        error.sentence = f"{instance.name}: {error.sentence}"
        raise

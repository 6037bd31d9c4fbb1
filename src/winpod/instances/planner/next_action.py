"""Next action of the operator for one instance: a pure function of what was just observed.

There is no journal. An operator that was killed observes the same state again and derives the same
action; an action that is done is not derived again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from winpod.instances import paths
from winpod.instances.planner.rollout import RolloutSlot
from winpod.instances.planner.steps import Step, StepKind

CONTAINERD = "containerd://"
_NO_SLOT = RolloutSlot(False)


class Action(StrEnum):
    NONE = "rest"
    WAIT = "wait"
    REFUSE = "refuse"
    CORDON = "cordon"
    DRAIN = "drain"
    REPLACE = "replace its Machine"
    APPLY = "apply"
    WAIT_FOR_NODE = "await its Node"
    UNCORDON = "uncordon"
    REMOVE = "remove what is ours"
    DELETE_NODE = "delete its Node"
    RELEASE = "let go"


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """The Node with the instance's name; `mismatch` is why it is not the instance's own, if so."""

    name: str
    is_ready: bool = True
    is_cordoned: bool = False
    runtime: str = ""
    mismatch: str = ""


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """The state of an instance.

    `steps` lead to the desired state: a node or, for an instance being deleted, a clean machine.
    `pods` have to be evicted before steps may disturb them. An instance that is joining has a Node
    that was never ready.
    """

    steps: tuple[Step, ...] = ()
    node: ObservedNode | None = None
    pods: int = 0
    turn: RolloutSlot = _NO_SLOT
    is_deleting: bool = False
    is_machine: bool = False
    is_cordoned_by_us: bool = False
    is_joining: bool = False


@dataclass(frozen=True, slots=True)
class NextAction:
    action: Action
    why: str = ""


def next_action(instance: ObservedInstance) -> NextAction:
    if instance.is_deleting:
        return _next_removal_action(instance)
    if instance.node and instance.node.mismatch:
        return NextAction(Action.REFUSE, instance.node.mismatch)
    if instance.steps:
        return _next_change_action(instance)
    if problem := node_problem(instance.node):
        return NextAction(Action.WAIT_FOR_NODE, problem)
    if instance.is_cordoned_by_us:
        return NextAction(Action.UNCORDON)
    return NextAction(Action.NONE)


def disturbs_pods(steps: Iterable[Step]) -> bool:
    """Whether a step may end a running pod; starting a stopped service or adding files does not."""
    return any(
        step.kind not in _HARMLESS_STEPS and step.target not in _HARMLESS_FILES for step in steps
    )


def node_problem(node: ObservedNode | None) -> str:
    """Return why it is not a ready node with containerd yet; empty if it is."""
    if node is None:
        return "its Node has not registered"
    if not node.is_ready:
        return f"its Node {node.name} is not ready"
    if not node.runtime.startswith(CONTAINERD):
        return f"its Node {node.name} reports the runtime {node.runtime or 'unknown'}"
    return ""


_HARMLESS_STEPS = frozenset((StepKind.START_SERVICE, StepKind.PULL_IMAGE, StepKind.MAKE_DIRECTORY))
_HARMLESS_FILES = frozenset((paths.BOOTSTRAP_KUBECONFIG, paths.VERSION))


def _next_change_action(instance: ObservedInstance) -> NextAction:
    if instance.node is None or instance.is_joining or not disturbs_pods(instance.steps):
        return NextAction(Action.APPLY)
    if not instance.turn.is_granted:
        return NextAction(Action.WAIT, instance.turn.why)
    if instance.is_machine:
        return NextAction(Action.REPLACE)
    return _evacuate(instance, instance.node) or NextAction(Action.APPLY)


def _next_removal_action(instance: ObservedInstance) -> NextAction:
    """Return the next action of removal.

    A machine of a Machine is deleted with it, and its Node belongs to the Machine's controller.
    """
    if instance.is_machine:
        return NextAction(Action.RELEASE)
    node = instance.node if instance.node and not instance.node.mismatch else None
    if instance.steps:
        return (_evacuate(instance, node) if node else None) or NextAction(Action.REMOVE)
    return NextAction(Action.DELETE_NODE if node else Action.RELEASE)


def _evacuate(instance: ObservedInstance, node: ObservedNode) -> NextAction | None:
    """Return the action that cordons or drains the node; None if both are done."""
    if not node.is_cordoned:
        return NextAction(Action.CORDON)
    if instance.pods:
        return NextAction(Action.DRAIN, f"{instance.pods} pods to evict from {node.name}")
    return None

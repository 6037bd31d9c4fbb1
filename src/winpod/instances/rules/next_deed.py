"""What an operator does next about one instance: pure, from what was read of it just now.

There is no journal. An operator that was killed reads the same again and comes to the same deed,
and a deed that is done is not decided again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from winpod.instances import paths
from winpod.instances.rules.rolling import Turn
from winpod.instances.rules.steps import Do, Step

CONTAINERD = "containerd://"
_NO_TURN = Turn(False)


class Deed(StrEnum):
    REST = "rest"
    WAIT = "wait"
    REFUSE = "refuse"
    CORDON = "cordon"
    DRAIN = "drain"
    REPLACE = "replace its Machine"
    APPLY = "apply"
    AWAIT_NODE = "await its Node"
    UNCORDON = "uncordon"
    REMOVE = "remove what is ours"
    DELETE_NODE = "delete its Node"
    LET_GO = "let go"


@dataclass(frozen=True, slots=True)
class NodeNow:
    """The Node of the instance's name; `stranger` says why it is not the instance's, if not."""

    name: str
    is_ready: bool = True
    is_cordoned: bool = False
    runtime: str = ""
    stranger: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """`steps` lead to what is wanted: a node, or, of one that is leaving, nothing of ours.

    `pods` have to go elsewhere before pods there are disturbed. One that is joining is a Node, but
    was never ready.
    """

    steps: tuple[Step, ...] = ()
    node: NodeNow | None = None
    pods: int = 0
    turn: Turn = _NO_TURN
    is_leaving: bool = False
    is_machine: bool = False
    is_cordoned_by_us: bool = False
    is_joining: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    deed: Deed
    why: str = ""


def next_deed(now: Situation) -> Decision:
    if now.is_leaving:
        return _leave(now)
    if now.node and now.node.stranger:
        return Decision(Deed.REFUSE, now.node.stranger)
    if now.steps:
        return _change(now)
    if problem := node_problem(now.node):
        return Decision(Deed.AWAIT_NODE, problem)
    if now.is_cordoned_by_us:
        return Decision(Deed.UNCORDON)
    return Decision(Deed.REST)


def disturbs_pods(steps: Iterable[Step]) -> bool:
    """What only brings back a service that is not running, or adds, ends no pod that runs."""
    return any(step.do not in _GENTLE and step.target not in _GENTLE_FILES for step in steps)


def node_problem(node: NodeNow | None) -> str:
    """Why it cannot be said to be a node with containerd yet, or nothing."""
    if node is None:
        return "its Node has not registered"
    if not node.is_ready:
        return f"its Node {node.name} is not ready"
    if not node.runtime.startswith(CONTAINERD):
        return f"its Node {node.name} says its runtime is {node.runtime or 'unknown'}"
    return ""


_GENTLE = frozenset((Do.START_SERVICE, Do.PULL_IMAGE, Do.MAKE_DIRECTORY))
_GENTLE_FILES = frozenset((paths.BOOTSTRAP_KUBECONFIG, paths.VERSION))


def _change(now: Situation) -> Decision:
    if now.node is None or now.is_joining or not disturbs_pods(now.steps):
        return Decision(Deed.APPLY)
    if not now.turn.is_granted:
        return Decision(Deed.WAIT, now.turn.why)
    if now.is_machine:
        return Decision(Deed.REPLACE)
    return _emptied(now, now.node) or Decision(Deed.APPLY)


def _leave(now: Situation) -> Decision:
    """A Machine's machine goes with it, and its Node is its controller's."""
    if now.is_machine:
        return Decision(Deed.LET_GO)
    node = now.node if now.node and not now.node.stranger else None
    if now.steps:
        return (_emptied(now, node) if node else None) or Decision(Deed.REMOVE)
    return Decision(Deed.DELETE_NODE if node else Deed.LET_GO)


def _emptied(now: Situation, node: NodeNow) -> Decision | None:
    if not node.is_cordoned:
        return Decision(Deed.CORDON)
    if now.pods:
        return Decision(Deed.DRAIN, f"{now.pods} pods have to leave {node.name}")
    return None

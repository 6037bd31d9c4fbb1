"""Which pods go so that a critical one can come: as few as can be, and those that matter least.

A kubelet's rule. Pods that asked for nothing go before those that asked for something, and these
before those that were promised it; of several, the one whose request is closest to what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lightkube.models import core_v1 as v1

from winpod.node.admission import Lack, taken_by, whole
from winpod.node.pods import is_critical, priority_of, qos_class

_CLASSES = ("BestEffort", "Burstable", "Guaranteed")
Missing = Mapping[str, int]


class NotEnough(Exception):
    """All that may go have asked for less than is missing; told in a kubelet's words."""

    def __init__(self, missing: Missing) -> None:
        listed = "".join(f"(res: {name}, q: {amount}), " for name, amount in missing.items())
        super().__init__(f"no set of running pods found to reclaim resources: [{listed}]")


def to_preempt(
    pod: v1.Pod,
    others: Iterable[v1.Pod],
    lacks: Iterable[Lack],
    ending: Sequence[v1.Pod] = (),
) -> list[v1.Pod]:
    """Of the others. What those give back that end already is not asked of anybody else."""
    missing = _left({lack.name: lack.missing for lack in lacks}, ending)
    going = [other for other in others if _may_preempt(pod, other)]
    if too_little := _left(missing, going):
        raise NotEnough(too_little)
    least, middle, most = ([p for p in going if qos_class(p) == name] for name in _CLASSES)
    most = _closest(most, _left(missing, [*least, *middle]))
    middle = _closest(middle, _left(missing, [*least, *most]))
    least = _closest(least, _left(missing, [*middle, *most]))
    return [*least, *middle, *most]


def _may_preempt(pod: v1.Pod, other: v1.Pod) -> bool:
    if is_critical(pod) and not is_critical(other):
        return True
    return priority_of(pod) > priority_of(other)


def _left(missing: Missing, gone: Sequence[v1.Pod]) -> dict[str, int]:
    """What is still missing once these have gone."""
    left = {n: amount - sum(_asked(pod, n) for pod in gone) for n, amount in missing.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _closest(pods: Sequence[v1.Pod], missing: Missing) -> list[v1.Pod]:
    """One after the other, each that leaves the least missing."""
    chosen: list[v1.Pod] = []
    while left := _left(missing, chosen):
        rest = [pod for pod in pods if pod not in chosen]
        chosen.append(min(rest, key=lambda pod: _distance(pod, left)))
    return chosen


def _distance(pod: v1.Pod, missing: Missing) -> tuple[float, int, int]:
    """How far it is from enough, each resource as a share of what is missing; then its size."""
    shares = (max(amount - _asked(pod, name), 0) / amount for name, amount in missing.items())
    return sum(share**2 for share in shares), _asked(pod, "memory"), _asked(pod, "cpu")


def _asked(pod: v1.Pod, name: str) -> int:
    return whole(name, dict(taken_by(pod).needs))

"""A placement in one line, for answers of the API server: which nodes, and why not."""

from __future__ import annotations

from winpod.cluster.check import name_nodes
from winpod.windows.placement import Cluster
from winpod.windows.scheduling import is_out_of_reach
from winpod.windows.verdicts import Outcome, Placement, Stage, Verdict

_MOST_VERDICTS = 4


def describe_placement(placement: Placement, cluster: Cluster) -> str:
    """Why it does not run, where that is nearest first; nodes of its choice before all others."""
    if placement.refusals:
        return _sentence("; ".join(reason.sentence for reason in placement.refusals))
    against = [v for v in placement.verdicts if v.outcome is not Outcome.RUNS]
    if not against:
        return "there is no node."
    first = {verdict.nodes[0] for verdict in against}
    windows = {n.name for n in cluster.nodes if n.name in first and n.os == "windows"}
    nearest = sorted(
        against,
        key=lambda v: (is_out_of_reach(v.reasons), v.nodes[0] not in windows, len(v.reasons)),
    )
    told = "; ".join(_describe(verdict) for verdict in nearest[:_MOST_VERDICTS])
    rest = sum(len(verdict.nodes) for verdict in nearest[_MOST_VERDICTS:])
    return _sentence(f"{told}; and {rest} other nodes" if rest else told)


def describe_stray(placement: Placement) -> str:
    """Where the scheduler may put it although it cannot start there."""
    failing = [verdict for verdict in placement.verdicts if verdict.outcome is Outcome.FAILS]
    told = "; ".join(_describe(verdict) for verdict in failing[:_MOST_VERDICTS])
    return _sentence(f"it may be put where it cannot start: {told}")


def _describe(verdict: Verdict) -> str:
    """A taint is not worth a word on a node where the pod could not start anyway."""
    final = [reason for reason in verdict.reasons if reason.stage is Stage.START]
    reasons = ", ".join(dict.fromkeys(reason.sentence for reason in final or verdict.reasons))
    return f"{name_nodes(verdict.nodes)}: {reasons}"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."

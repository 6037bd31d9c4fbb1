"""A check's report for code review tools: SARIF 2.1.0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from winpod import __version__
from winpod.cluster.check import Checked, Report, name_nodes
from winpod.windows.pod_api import FIELD_RULES
from winpod.windows.reading import Path
from winpod.windows.verdicts import Cause, Outcome, Placement, Reason, Status

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS = {
    Status.CANNOT_RUN: "error",
    Status.UNKNOWN: "warning",
    Status.WAITS: "warning",
    Status.MAY_FAIL: "warning",
}

_CAUSES = {
    Cause.OS: "The pod or its image is for another operating system than the node's.",
    Cause.ARCHITECTURE: "The image has nothing for the node's architecture.",
    Cause.BUILD: "The image's Windows build does not fit the node's, or the guest's.",
    Cause.HANDLER: "The node's runtime has no handler of the RuntimeClass's name.",
    Cause.ISOLATION: "The node cannot give the isolation that the handler asks for.",
    Cause.RUNTIME_CLASS: "The API server refuses the pod because of its RuntimeClass.",
    Cause.SELECTOR: "The node does not have a label that the pod or its RuntimeClass selects.",
    Cause.AFFINITY: "The node does not match the pod's required node affinity.",
    Cause.NODE_NAME: "The pod names another node.",
    Cause.TAINT: "The pod does not tolerate a taint of the node.",
    Cause.CORDONED: "The node is cordoned.",
    Cause.RESOURCES: "The node has no room for the pod, its RuntimeClass's overhead included.",
    Cause.IMAGE: "What the image is could not be found out.",
}

_OTHER_RULES = {
    "placement/none": "There is no node that the pod could run on.",
    "placement/linux-pod-on-windows": "A Linux pod may be scheduled on a Windows node.",
    "placement/os-not-stated": "Nothing says which operating system the pod is for.",
    "image/guessed": "The image's Windows build was read off its tag.",
    "image/not-found": "The image does not exist, or its name is no reference.",
    "image/unknown": "The image could not be looked up.",
}


def to_sarif(report: Report) -> dict[str, Any]:
    results = [result for checked in report.checked for result in _results(checked)]
    used = {result["ruleId"] for result in results}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "winpod check",
                        "semanticVersion": __version__,
                        "rules": [
                            {"id": rule, "shortDescription": {"text": text}}
                            for rule, text in _rules()
                            if rule in used
                        ],
                    }
                },
                "results": results,
            }
        ],
    }


def _rules() -> Iterator[tuple[str, str]]:
    for cause, text in _CAUSES.items():
        yield f"placement/{cause}", text
    yield from _OTHER_RULES.items()
    for rule in FIELD_RULES:
        yield rule.id, rule.what


def _results(checked: Checked) -> Iterator[dict[str, Any]]:
    placement = checked.placement
    if placement is not None and placement.status in _LEVELS:
        reason = _main_reason(placement)
        rule = f"placement/{reason.cause}" if reason else "placement/none"
        text = _story(checked, placement)
        yield _result(checked, rule, _LEVELS[placement.status], text, checked.workload.spec_path)
    for problem in checked.problems:
        text = f"{problem.sentence} {problem.instead}".strip()
        yield _result(checked, problem.rule, problem.severity, text, problem.path)


def _main_reason(placement: Placement) -> Reason | None:
    """The API server's refusal if there is one, else what fails, else what blocks."""
    verdicts = sorted(placement.verdicts, key=lambda v: v.outcome is not Outcome.FAILS)
    reasons = (*placement.refusals, *(r for v in verdicts for r in v.reasons))
    return next(iter(reasons), None)


_SAID = {
    Status.CANNOT_RUN: "cannot run",
    Status.UNKNOWN: "may or may not run",
    Status.MAY_FAIL: "may fail",
}


def _story(checked: Checked, placement: Placement) -> str:
    status = placement.status
    text = f"{checked.workload} {_SAID.get(status, status)}."
    for refusal in placement.refusals:
        text += f" {refusal.sentence}."
    for verdict in placement.verdicts:
        if verdict.reasons:
            why = "; ".join(reason.sentence for reason in verdict.reasons)
            text += f" On {name_nodes(verdict.nodes)}: {why}."
    if checked.advice:
        text += f" To change: {'; '.join(checked.advice)}."
    return text


def _result(checked: Checked, rule: str, level: str, text: str, path: Path) -> dict[str, Any]:
    origin = checked.workload.origin
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(os.fsencode(origin.file))},
                    "region": {"startLine": origin.line(path)},
                },
                "logicalLocations": [{"fullyQualifiedName": str(checked.workload)}],
            }
        ],
    }

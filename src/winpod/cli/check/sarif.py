"""SARIF 2.1.0 report of `winpod check`, for code review tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from winpod import __version__
from winpod.check.engine import Report, WorkloadReport
from winpod.field_reader import FieldPath
from winpod.placement.verdicts import Cause, Outcome, Placement, Reason, Status, format_node_names
from winpod.windows.pod_api.linter import FIELD_RULES

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS = {
    Status.CANNOT_RUN: "error",
    Status.UNKNOWN: "warning",
    Status.WAITS: "warning",
    Status.MAY_FAIL: "warning",
}

_CAUSES = {
    Cause.OS: "The pod or its image is for a different operating system than the node's.",
    Cause.ARCHITECTURE: "The image has no manifest for the node's architecture.",
    Cause.BUILD: "The image's Windows build is not compatible with the node's or the guest's.",
    Cause.HANDLER: "The node's runtime does not have the handler of the RuntimeClass.",
    Cause.ISOLATION: "The node does not support the isolation of the handler.",
    Cause.RUNTIME_CLASS: "The API server rejects the pod because of its RuntimeClass.",
    Cause.SELECTOR: "The node lacks a label that the pod or its RuntimeClass selects.",
    Cause.AFFINITY: "The node does not match the pod's required node affinity.",
    Cause.NODE_NAME: "The pod names another node.",
    Cause.TAINT: "The pod does not tolerate a taint of the node.",
    Cause.CORDONED: "The node is cordoned.",
    Cause.RESOURCES: "The node has insufficient resources for the pod and its overhead.",
    Cause.IMAGE: "The platforms of the image could not be determined.",
}

_OTHER_RULES = {
    "placement/none": "No node can run the pod.",
    "placement/linux-pod-on-windows": "A Linux pod may be scheduled on a Windows node.",
    "placement/os-not-stated": "The operating system of the pod is not specified.",
    "image/guessed": "The image's Windows build was inferred from its tag.",
    "image/not-found": "The image does not exist, or its name is not a valid reference.",
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
        yield rule.id, rule.effect


def _results(checked: WorkloadReport) -> Iterator[dict[str, Any]]:
    placement = checked.placement
    if placement is not None and placement.status in _LEVELS:
        reason = _main_reason(placement)
        rule = f"placement/{reason.cause}" if reason else "placement/none"
        text = _message(checked, placement)
        yield _result(checked, rule, _LEVELS[placement.status], text, checked.workload.spec_path)
    for problem in checked.problems:
        text = f"{problem.message} {problem.instead}".strip()
        yield _result(checked, problem.rule, problem.severity, text, problem.path)


def _main_reason(placement: Placement) -> Reason | None:
    """Return the API server's rejection, else the first failure, else the first blocker."""
    verdicts = sorted(placement.verdicts, key=lambda v: v.outcome is not Outcome.FAILS)
    reasons = (*placement.refusals, *(r for v in verdicts for r in v.reasons))
    return next(iter(reasons), None)


_STATUS_TEXT = {
    Status.CANNOT_RUN: "cannot run",
    Status.UNKNOWN: "may or may not run",
    Status.MAY_FAIL: "may fail",
}


def _message(checked: WorkloadReport, placement: Placement) -> str:
    status = placement.status
    text = f"{checked.workload} {_STATUS_TEXT.get(status, status)}."
    for refusal in placement.refusals:
        text += f" {refusal.message}."
    for verdict in placement.verdicts:
        if verdict.reasons:
            why = "; ".join(reason.message for reason in verdict.reasons)
            text += f" On {format_node_names(verdict.nodes)}: {why}."
    if checked.advice:
        text += f" To change: {'; '.join(checked.advice)}."
    return text


def _result(
    checked: WorkloadReport, rule: str, level: str, text: str, path: FieldPath
) -> dict[str, Any]:
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

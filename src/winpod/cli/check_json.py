"""A check's report for programs; docs/check.schema.json describes it."""

from __future__ import annotations

from typing import Any

from winpod.cluster.check import Checked, Report
from winpod.windows.objects import Node
from winpod.windows.verdicts import Reason, Status, Verdict

SCHEMA = "winpod.dev/check/v1"


def to_json(report: Report) -> dict[str, Any]:
    counts = report.counts()
    return {
        "schema": SCHEMA,
        "summary": {status.value: counts[status] for status in Status},
        "notes": list(report.notes),
        "nodes": [_node(node) for node in report.cluster.nodes],
        "workloads": [_workload(checked) for checked in report.checked],
    }


def _node(node: Node) -> dict[str, Any]:
    build = node.build
    return {
        "name": node.name,
        "os": node.os,
        "architecture": node.architecture,
        "build": str(build) if build else None,
        "product": build.release.name if build and build.release else None,
        "runtime": node.runtime or None,
        "handlers": None if node.handlers is None else sorted(node.handlers),
    }


def _workload(checked: Checked) -> dict[str, Any]:
    workload, placement = checked.workload, checked.placement
    return {
        "kind": workload.kind,
        "namespace": workload.namespace,
        "name": workload.name,
        "file": workload.origin.file,
        "line": workload.origin.line(),
        "status": checked.status.value,
        "os": checked.os or None,
        "node": placement.node or None if placement else None,
        "images": [
            {
                "image": text,
                "builds": list(image.builds()),
                "guessed": image.guessed,
            }
            for text, image in checked.images.items()
        ],
        "refusals": [_reason(r) for r in placement.refusals] if placement else [],
        "verdicts": [_verdict(v) for v in placement.verdicts] if placement else [],
        "problems": [
            {
                "rule": problem.rule,
                "severity": problem.severity,
                "field": problem.field,
                "line": workload.origin.line(problem.path),
                "message": problem.sentence,
                "instead": problem.instead or None,
            }
            for problem in checked.problems
        ],
        "advice": list(checked.advice),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "nodes": list(verdict.nodes),
        "outcome": verdict.outcome.value,
        "handler": verdict.handler or None,
        "isolation": verdict.isolation.value if verdict.isolation else None,
        "kernel": str(verdict.kernel) if verdict.kernel else None,
        "manifests": {
            text: {"digest": m.digest or None, "platform": str(m.platform)}
            for text, m in verdict.manifests
        },
        "reasons": [_reason(reason) for reason in verdict.reasons],
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "cause": reason.cause.value,
        "stage": reason.stage.value,
        "message": reason.sentence,
        "symptom": reason.symptom or None,
        "temporary": reason.temporary,
    }

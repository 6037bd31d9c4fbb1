"""JSON report of `winpod check`; docs/check.schema.json describes it.

Generated line by line, one node or workload per line, because reports can be large.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from winpod.check.engine import Report, WorkloadReport
from winpod.labels import CHECK_SCHEMA
from winpod.placement.model import Node
from winpod.placement.verdicts import Reason, Status, Verdict


def json_lines(report: Report) -> Iterator[str]:
    counts = report.counts()
    yield f'{{"schema": {json.dumps(CHECK_SCHEMA)},'
    yield f' "summary": {json.dumps({status.value: counts[status] for status in Status})},'
    yield f' "notes": {json.dumps(list(report.notes))},'
    yield ' "nodes": ['
    yield from _separated(_node(node) for node in report.cluster.nodes)
    yield ' ], "workloads": ['
    yield from _separated(_workload(checked) for checked in report.checked)
    yield " ]}"


def _separated(objects: Iterable[dict[str, Any]]) -> Iterator[str]:
    comma = ""
    for obj in objects:
        yield f"  {comma}{json.dumps(obj)}"
        comma = ","


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


def _workload(checked: WorkloadReport) -> dict[str, Any]:
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
                "guessed": image.is_guess,
            }
            for text, image in checked.images.items()
        ],
        "refusals": [reason_json(r) for r in placement.refusals] if placement else [],
        "verdicts": [verdict_json(v) for v in placement.verdicts] if placement else [],
        "problems": [
            {
                "rule": problem.rule,
                "severity": problem.severity,
                "field": problem.field,
                "line": workload.origin.line(problem.path),
                "message": problem.message,
                "instead": problem.instead or None,
            }
            for problem in checked.problems
        ],
        "advice": list(checked.advice),
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
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
        "reasons": [reason_json(reason) for reason in verdict.reasons],
    }


def reason_json(reason: Reason) -> dict[str, Any]:
    return {
        "cause": reason.cause.value,
        "stage": reason.stage.value,
        "message": reason.message,
        "symptom": reason.symptom or None,
        "temporary": reason.temporary,
    }

"""The stories of the documentation: manifests in examples/ and their expected reports."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import EXAMPLES
from tests.support.winpod_cli import winpod

CASES = [
    (expected.parent, number, case)
    for expected in sorted(EXAMPLES.glob("*/expected.yaml"))
    for number, case in enumerate(yaml.safe_load(expected.read_text("utf-8")))
]


def test_every_story_is_tested() -> None:
    assert {folder.name for folder, _, _ in CASES} == {"story-1", "story-2", "story-3"}


@pytest.mark.parametrize(
    ("folder", "number", "case"), CASES, ids=lambda v: v.name if isinstance(v, Path) else None
)
def test_story_has_the_expected_report(
    folder: Path, number: int, case: dict[str, Any], story_images: Path, tmp_path: Path
) -> None:
    del number
    files = [option for file in case["check"] for option in ("-f", str(folder / file))]
    nodes = str(folder / case["nodes"])
    ran = winpod(
        *("check", "--offline", "--layout", str(story_images), "--nodes", nodes, "-o", "json"),
        *files,
        home=tmp_path,
    )
    assert (ran.code, ran.err) == (case["exit"], "")
    report = json.loads(ran.out)
    assert [w["name"] for w in report["workloads"]] == list(case["pods"])
    for workload in report["workloads"]:
        assert _reported(workload, case["pods"][workload["name"]]) == case["pods"][workload["name"]]


def _reported(workload: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the report that the story specifies."""
    by_node = {name: v for v in workload["verdicts"] for name in v["nodes"]}
    chosen = by_node.get(workload["node"], {})
    reported = {
        "status": workload["status"],
        "node": workload["node"],
        "handler": chosen.get("handler"),
        "isolation": chosen.get("isolation"),
        "image": next(
            (m["platform"].partition(" ")[2] for m in chosen.get("manifests", {}).values()), None
        ),
        "others": {
            name: [reason["cause"] for reason in verdict["reasons"]]
            for name, verdict in by_node.items()
            if verdict["reasons"]
        },
        "advice": workload["advice"],
    }
    return {key: reported[key] for key in expected}

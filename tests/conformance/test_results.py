"""Tests of the gate of `make conformance`: expected and unexpected results of critest."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.results import EXCEPTIONS, Spec, read_report, summary, table

EXCEPTION, KNOWN = next(iter(EXCEPTIONS.items()))


def report(state: str, message: str = "", kind: str = "It") -> dict[str, Any]:
    return {
        "ContainerHierarchyTexts": ["[k8s.io] Container", "runtime should stop"],
        "LeafNodeText": "at once [Conformance]",
        "LeafNodeType": kind,
        "State": state,
        **({"Failure": {"Message": message}} if message else {}),
    }


def write_report(folder: Path, *specs: dict[str, Any]) -> Path:
    file = folder / "report.json"
    file.write_text(json.dumps([{"SpecReports": specs}]))
    return file


def test_deselected_specs_and_setup_nodes_are_not_read(
    tmp_path: Path,
) -> None:
    specs = (report("passed"), report("skipped"), report("passed", kind="BeforeSuite"))
    assert read_report(write_report(tmp_path, *specs)) == [
        Spec("Container runtime should stop at once", "passed")
    ]


def test_spec_that_skips_itself_is_unexpected(tmp_path: Path) -> None:
    (spec,) = read_report(write_report(tmp_path, report("skipped", "not implemented")))
    assert spec.message == "not implemented"
    assert not spec.is_as_expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Spec("any", "passed"), True),
        (Spec("any", "failed"), False),
        (Spec("any", "panicked"), False),
        (Spec(EXCEPTION, "failed", f"{KNOWN.message}\nExpected"), True),
        (Spec(EXCEPTION, "failed", "for another reason"), False),
        (Spec(EXCEPTION, "passed"), False),
        (Spec(EXCEPTION, "timedout", KNOWN.message), False),
    ],
)
def test_exceptions_must_fail_with_their_message(spec: Spec, expected: bool) -> None:
    assert spec.is_as_expected is expected


def test_table_has_the_reason_of_each_exception() -> None:
    specs = [Spec("any", "passed"), Spec(EXCEPTION, "failed", KNOWN.message)]
    specs += [Spec("other", "failed")]
    assert KNOWN.reason in table(specs)
    assert "| other | failed |" in table(specs)
    assert summary(specs) == "3 specs: 1 passed, 1 failed, exceptions: 1"

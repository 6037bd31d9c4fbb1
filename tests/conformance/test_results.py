"""The gate of `make conformance`: what of critest's report is as expected, and what is not."""

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


def written(folder: Path, *specs: dict[str, Any]) -> Path:
    file = folder / "report.json"
    file.write_text(json.dumps([{"SpecReports": specs}]))
    return file


def test_specs_are_read_by_name_without_those_left_out_and_those_that_are_none(
    tmp_path: Path,
) -> None:
    specs = (report("passed"), report("skipped"), report("passed", kind="BeforeSuite"))
    assert read_report(written(tmp_path, *specs)) == [
        Spec("Container runtime should stop at once", "passed")
    ]


def test_a_spec_that_skips_itself_is_read_and_not_expected(tmp_path: Path) -> None:
    (spec,) = read_report(written(tmp_path, report("skipped", "not implemented")))
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
def test_only_exceptions_fail_and_they_must_for_their_reason(spec: Spec, expected: bool) -> None:
    assert spec.is_as_expected is expected


def test_the_table_gives_the_reason_of_every_exception() -> None:
    specs = [Spec("any", "passed"), Spec(EXCEPTION, "failed", KNOWN.message)]
    specs += [Spec("other", "failed")]
    assert KNOWN.reason in table(specs)
    assert "| other | failed |" in table(specs)
    assert summary(specs) == "3 specs: 1 passed, 1 failed, exceptions: 1"

"""Results of critest's specs, compared with the expected ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECS: Mapping[str, int] = {"SPDY": 53, "WebSocket": 4}


@dataclass(frozen=True)
class KnownFailure:
    """Reason why a spec cannot pass, and its failure message: other failures are not expected."""

    reason: str
    message: str


EXCEPTIONS: Mapping[str, KnownFailure] = {
    "Container runtime should support adding volume and device runtime should support starting"
    " container with volume when host path is a symlink": KnownFailure(
        "The spec creates a symbolic link with Go's `os.Symlink`. Wine 10 reports success without"
        " creating one, so the requested volume does not exist.",
        "len(output) should not be zero.",
    ),
}
NOTES: Mapping[str, str] = {
    "Image Manager public image with digest should be pulled and removed": (
        "critest's source has the digest of upstream's image; it is replaced by that of the local"
        " image."
    ),
}


@dataclass(frozen=True)
class Spec:
    name: str
    state: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    @property
    def is_as_expected(self) -> bool:
        """Return whether the spec passed, or is an exception that failed with its message."""
        if known := EXCEPTIONS.get(self.name):
            return self.state == "failed" and known.message in self.message
        return self.passed

    @property
    def result(self) -> str:
        return "exception" if self.name in EXCEPTIONS and self.is_as_expected else self.state

    @property
    def note(self) -> str:
        known = EXCEPTIONS.get(self.name)
        return known.reason if known else NOTES.get(self.name, "")


def read_report(file: Path) -> list[Spec]:
    """Read the specs of Ginkgo's JSON report, sorted by name, without deselected ones."""
    (suite,) = json.loads(file.read_text())
    found = [_spec(report) for report in suite["SpecReports"] if report["LeafNodeType"] == "It"]
    return sorted((one for one in found if one), key=lambda one: one.name)


def _spec(report: Mapping[str, Any]) -> Spec | None:
    words = " ".join([*report["ContainerHierarchyTexts"], report["LeafNodeText"]])
    message = report.get("Failure", {}).get("Message", "")
    if report["State"] == "skipped" and not message:
        return None
    name = words.replace("[k8s.io] ", "").replace(" [Conformance]", "")
    return Spec(name, report["State"], message)


def table(specs: Sequence[Spec]) -> str:
    lines = ["| spec | result | |", "|---|---|---|"]
    lines += [f"| {spec.name} | {spec.result} | {spec.note} |" for spec in specs]
    return "\n".join(lines) + "\n"


def summary(specs: Sequence[Spec]) -> str:
    passed = sum(spec.passed for spec in specs)
    exceptions = sum(spec.result == "exception" for spec in specs)
    failed = len(specs) - passed - exceptions
    return f"{len(specs)} specs: {passed} passed, {failed} failed, exceptions: {exceptions}"

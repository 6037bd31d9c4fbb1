"""Text report of `winpod check`: a line per workload and node, with reasons and advice."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from winpod.check.engine import Problem, Report, WorkloadReport
from winpod.placement.verdicts import Outcome, Placement, Reason, Status, Verdict, format_node_names

Line = list[tuple[str, str]]
"""Text fragments with their styles."""

STATUS_STYLES = {
    Status.RUNS: "bold green",
    Status.MAY_FAIL: "bold yellow",
    Status.WAITS: "bold yellow",
    Status.UNKNOWN: "bold yellow",
    Status.CANNOT_RUN: "bold red",
    Status.NOT_WINDOWS: "dim",
}
_OUTCOME_STYLES = {
    Outcome.RUNS: "green",
    Outcome.FAILS: "red",
    Outcome.BLOCKED: "yellow",
    Outcome.UNKNOWN: "yellow",
}
_SEVERITY_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}


def styled_word(word: str) -> str:
    return word.replace("-", " ")


def print_table(report: Report) -> None:
    print_lines(_lines(report))


def print_lines(lines: Iterable[Line]) -> None:
    """Print with colours on a terminal, as plain text otherwise."""
    if not sys.stdout.isatty():
        for line in lines:
            print("".join(text for text, _ in line).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)


def _lines(report: Report) -> Iterator[Line]:
    for checked in report.checked:
        yield from _workload(checked)
        yield []
    for note in report.notes:
        yield [("note: ", "cyan"), (note, "")]
    yield _summary(report)


def _workload(checked: WorkloadReport) -> Iterator[Line]:
    workload = checked.workload
    yield [
        (str(workload), "bold"),
        (f"  {workload.origin.file}:{workload.origin.line()}  ", "dim"),
        (styled_word(checked.status), STATUS_STYLES[checked.status]),
    ]
    if checked.placement is not None:
        yield from placement_lines(checked.placement)
    for problem in checked.problems:
        yield _problem(checked, problem)
        if problem.instead:
            yield [(f"      {problem.instead}", "dim")]
    yield from advice_lines(checked.advice)


def placement_lines(placement: Placement) -> Iterator[Line]:
    """Format a line per group of equal nodes, followed by the reasons."""
    for refusal in placement.refusals:
        yield _reason(refusal)
    rows = [_columns(verdict) for verdict in placement.verdicts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for verdict, row in zip(placement.verdicts, rows, strict=True):
        yield _verdict(verdict, row, widths)
        for reason in verdict.reasons:
            yield _reason(reason)


def advice_lines(advice: Iterable[str]) -> Iterator[Line]:
    for change in advice:
        yield [("  → ", "bold cyan"), (change, "")]


def _columns(verdict: Verdict) -> tuple[str, ...]:
    builds = dict.fromkeys(m.platform.os_version or "any" for _, m in verdict.manifests)
    return (
        format_node_names(verdict.nodes),
        verdict.outcome,
        verdict.isolation or "-",
        verdict.kernel.describe() if verdict.kernel else "-",
        f"image {', '.join(builds)}" if builds else "",
    )


def _verdict(verdict: Verdict, row: tuple[str, ...], widths: list[int]) -> Line:
    nodes, outcome, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return [
        (f"  {nodes}  ", ""),
        (outcome, _OUTCOME_STYLES[verdict.outcome]),
        ("  " + "  ".join(rest), "dim"),
    ]


def _reason(reason: Reason) -> Line:
    line = [(f"      {reason.message}", "")]
    if reason.symptom:
        line.append((f"  [{reason.symptom}]", "dim"))
    return line


def _problem(checked: WorkloadReport, problem: Problem) -> Line:
    line = checked.workload.origin.line(problem.path)
    return [
        (f"  {problem.severity}", _SEVERITY_STYLES[problem.severity]),
        (f" line {line}: ", "dim"),
        (problem.message, ""),
    ]


def _summary(report: Report) -> Line:
    counts, nodes = report.counts(), len(report.cluster.nodes)
    return [
        (f"{len(report.checked)} checked", "bold"),
        (f" against {nodes} node{'' if nodes == 1 else 's'}: ", ""),
        *_joined(
            (f"{counts[status]} {styled_word(status)}", STATUS_STYLES[status])
            for status in Status
            if counts[status]
        ),
    ]


def _joined(pieces: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for index, piece in enumerate(pieces):
        if index:
            yield (", ", "")
        yield piece

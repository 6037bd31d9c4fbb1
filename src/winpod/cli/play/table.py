"""Tables of `winpod play`: pods with their placement, services, warnings and changes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from winpod.cli.options import emulation_note, print_table
from winpod.play.apiserver.objects import Document, ObjectKey
from winpod.windows.builds import parse_build

_NAMES = ("kind", "namespace", "name", "change")


def list_changes(result: Document) -> list[dict[str, Any]]:
    return [dict(zip(_NAMES, parts, strict=True)) for parts in result["changes"]]


def print_changes(result: Document) -> None:
    """Print changes as kubectl does: `deployment/web created`."""
    for note in result.get("notes", ()):
        print(f"note: {note}")
    for *parts, change in result["changes"]:
        print(f"{ObjectKey(*parts)} {change}")
    sys.stdout.flush()


Lines = tuple[str, ...]
_COLUMNS = ("pod", "node", "build", "handler", "image", "ip", "ready", "state", "why here")


def print_state(state: dict[str, Any]) -> None:
    pods = state["pods"]
    if pods:
        print_table(_COLUMNS, [_row(pod) for pod in pods])
    else:
        print("No pods.")
    for job in failed_workloads(state):
        print(f"{job['kind'].lower()}/{job['name']}: {job['reason']}: {job['message']}")
    for line in (*_unschedulable_lines(pods), *_problem_lines(pods)):
        print(line)
    for service in state["services"]:
        for address in service["published"]:
            if not any(warning.startswith(f"{address}/") for warning in state["troubles"]):
                print(f"service {service['name']} is at http://{_localhost(address)}")
    for warning in state["troubles"]:
        print(f"warning: {warning}")


def failed_workloads(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return failed Jobs, whose pods may already be deleted."""
    return [job for job in state["workloads"] if job.get("condition") == "Failed"]


def _row(pod: dict[str, Any]) -> Sequence[str]:
    build = parse_build(pod["build"]) if pod["build"] else None
    name = pod["name"] if pod["namespace"] == "default" else f"{pod['namespace']}/{pod['name']}"
    return (
        name,
        pod["node"] or "-",
        build.release.short_name if build and build.release else pod["build"] or "-",
        f"{pod['handler']}{emulation_note(pod['accelerator'])}" if pod["handler"] else "-",
        ", ".join(pod["images"]),
        pod["ip"] or "-",
        pod["ready"],
        pod["state"],
        pod["why"] or ("no node can run it" if pod["against"] else "-"),
    )


def _unschedulable_lines(pods: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Format why pods are unschedulable, once for pods with equal reasons."""
    pods_by_reason: dict[tuple[Lines, Lines], list[str]] = {}
    for pod in pods:
        if pod["against"]:
            key = (tuple(pod["against"]), tuple(pod["advice"]))
            pods_by_reason.setdefault(key, []).append(pod["name"])
    for (against, advice), names in pods_by_reason.items():
        yield ""
        yield f"{', '.join(names)}: no node can run it."
        yield from (f"  {line}" for line in against)
        yield from (f"  → {line}" for line in advice)


def _problem_lines(pods: Iterable[dict[str, Any]]) -> Iterable[str]:
    for pod in pods:
        if pod["trouble"] and not pod["isReady"] and not pod["against"]:
            yield f"{pod['name']}: {pod['state']}: {pod['trouble'].strip()}"


def _localhost(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host == "127.0.0.1" else address

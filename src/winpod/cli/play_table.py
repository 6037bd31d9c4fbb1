"""What is played, as tables: pods with where they run and why, services, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from winpod.cli.options import emulated, print_table
from winpod.windows.builds import parse_build

Lines = tuple[str, ...]
_COLUMNS = ("pod", "node", "build", "handler", "image", "ip", "ready", "state", "why here")


def print_played(state: dict[str, Any]) -> None:
    pods = state["pods"]
    if pods:
        print_table(_COLUMNS, [_row(pod) for pod in pods])
    else:
        print("No pods.")
    for one in failed_workloads(state):
        print(f"{one['kind'].lower()}/{one['name']}: {one['reason']}: {one['message']}")
    for line in (*_waiting(pods), *_troubles(pods)):
        print(line)
    for service in state["services"]:
        for place in service["published"]:
            if not any(trouble.startswith(f"{place}/") for trouble in state["troubles"]):
                print(f"service {service['name']} is at http://{_local(place)}")
    for trouble in state["troubles"]:
        print(f"warning: {trouble}")


def failed_workloads(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Jobs that gave up, whose pods may be gone."""
    return [one for one in state["workloads"] if one.get("condition") == "Failed"]


def _row(pod: dict[str, Any]) -> Sequence[str]:
    build = parse_build(pod["build"]) if pod["build"] else None
    name = pod["name"] if pod["namespace"] == "default" else f"{pod['namespace']}/{pod['name']}"
    return (
        name,
        pod["node"] or "-",
        build.release.short_name if build and build.release else pod["build"] or "-",
        f"{pod['handler']}{emulated(pod['accelerator'])}" if pod["handler"] else "-",
        ", ".join(pod["images"]),
        pod["ip"] or "-",
        pod["ready"],
        pod["state"],
        pod["why"] or ("no node can run it" if pod["against"] else "-"),
    )


def _waiting(pods: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The reasons and the advice of `winpod check`, once for pods that are alike."""
    told: dict[tuple[Lines, Lines], list[str]] = {}
    for pod in pods:
        if pod["against"]:
            key = (tuple(pod["against"]), tuple(pod["advice"]))
            told.setdefault(key, []).append(pod["name"])
    for (against, advice), names in told.items():
        yield ""
        yield f"{', '.join(names)}: no node can run it."
        yield from (f"  {line}" for line in against)
        yield from (f"  → {line}" for line in advice)


def _troubles(pods: Iterable[dict[str, Any]]) -> Iterable[str]:
    for pod in pods:
        if pod["trouble"] and not pod["isReady"] and not pod["against"]:
            yield f"{pod['name']}: {pod['state']}: {pod['trouble'].strip()}"


def _local(place: str) -> str:
    address, _, port = place.rpartition(":")
    return f"localhost:{port}" if address == "127.0.0.1" else place

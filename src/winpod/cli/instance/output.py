"""Output of `winpod instance`: progress lines, and the results as a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from winpod.cli.options import Format, human_size, print_table
from winpod.instances.errors import with_instance
from winpod.instances.planner.state import CONTAINERD, DOCKER, KUBELET, InstanceState
from winpod.instances.planner.steps import Step
from winpod.instances.standalone.parallel import InstanceResult

FAILED = 1


def progress_printer(name: str) -> Callable[[str], None]:
    """Return a function that prints progress on stderr, prefixed with the instance."""
    return lambda message: print(f"{name}: {message}", file=sys.stderr, flush=True)


def print_failures(results: Iterable[InstanceResult[Any]]) -> int:
    """Print the errors on stderr and return the exit code."""
    failures = [result for result in results if result.failure]
    for result in failures:
        print(f"winpod: {with_instance(result.name, str(result.failure))}", file=sys.stderr)
    return FAILED if failures else 0


def print_plans(results: Sequence[InstanceResult[tuple[Step, ...]]], output: Format) -> None:
    if output is Format.JSON:
        _print_json(results, lambda steps: {"steps": [_step_json(step) for step in steps]})
        return
    for result in results:
        if result.result is not None:
            count = len(result.result)
            print(f"{result.name}: {f'{count} steps' if count else 'up to date'}")
            for number, step in enumerate(result.result, 1):
                print(f"  {number}. {step}")
                print(f"     expected: {step.expected}")
                print(f"     found:    {step.found}")


def print_states(results: Sequence[InstanceResult[InstanceState]], output: Format) -> None:
    if output is Format.JSON:
        _print_json(results, _state_json)
        return
    columns = ("INSTANCE", "HOST", "WINDOWS", "VERSION", "CONTAINERD", "KUBELET", "DOCKER", "FREE")
    print_table(columns, [_row(result) for result in results], right=("FREE",))


def print_results(results: Sequence[InstanceResult[Any]], output: Format) -> None:
    """Print the result of each instance, such as the file that was written."""
    if output is Format.JSON:
        _print_json(results, lambda result: {"result": str(result)})
        return
    for result in results:
        if not result.failure:
            print(f"{result.name}: {result.result}")


def _row(result: InstanceResult[InstanceState]) -> tuple[str, ...]:
    state = result.result
    if state is None:
        return (result.name, *["-"] * 3, "failed", *["-"] * 3)
    return (
        result.name,
        state.hostname,
        state.build.describe(),
        state.version or "none",
        *(_service_state(state, name) for name in (CONTAINERD, KUBELET)),
        next(
            (
                state_text
                for state_text in (_service_state(state, name) for name in DOCKER)
                if state_text != "none"
            ),
            "none",
        ),
        human_size(state.free_bytes),
    )


def _service_state(state: InstanceState, name: str) -> str:
    service = state.service(name)
    return str(service.state) if service else "none"


def _state_json(state: InstanceState) -> dict[str, Any]:
    return {
        "hostname": state.hostname,
        "build": str(state.build),
        "product": state.product,
        "version": state.version,
        "features": {name: str(found) for name, found in state.features.items()},
        "services": {service.name: str(service.state) for service in state.services.values()},
        "networks": [network.name for network in state.networks],
        "freeBytes": state.free_bytes,
    }


def _step_json(step: Step) -> dict[str, str]:
    return {
        "do": str(step.kind),
        "target": step.target,
        "expected": step.expected,
        "found": step.found,
        "why": step.why,
    }


def _print_json(
    results: Sequence[InstanceResult[Any]], to_dict: Callable[[Any], dict[str, Any]]
) -> None:
    found = [
        {"instance": result.name, **(to_dict(result.result) if not result.failure else {})}
        | ({"failure": str(result.failure)} if result.failure else {})
        for result in results
    ]
    print(json.dumps(found, indent=2))

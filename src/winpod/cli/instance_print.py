"""What is told of instances while a command works, and the table at its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from winpod.cli.options import Format, human_size, print_table
from winpod.instances.laptop.several import Outcome
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Step
from winpod.instances.rules.stopping import CONTAINERD, DOCKER, KUBELET

FAILED = 1


def telling(name: str) -> Callable[[str], None]:
    """Lines on stderr, each with the instance that it is about."""
    return lambda sentence: print(f"{name}: {sentence}", file=sys.stderr, flush=True)


def print_failures(outcomes: Iterable[Outcome[Any]]) -> int:
    """The exit code."""
    failures = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failures:
        sentence = str(outcome.failure)
        about = "" if sentence.startswith(f"{outcome.name}:") else f"{outcome.name}: "
        print(f"winpod: {about}{sentence}", file=sys.stderr)
    return FAILED if failures else 0


def print_plans(outcomes: Sequence[Outcome[tuple[Step, ...]]], output: Format) -> None:
    if output is Format.JSON:
        _print_json(outcomes, lambda steps: {"steps": [_step(step) for step in steps]})
        return
    for outcome in outcomes:
        if outcome.result is not None:
            count = len(outcome.result)
            print(f"{outcome.name}: {f'{count} steps' if count else 'nothing is to be done'}")
            for number, step in enumerate(outcome.result, 1):
                print(f"  {number}. {step}")
                print(f"     expected: {step.expected}")
                print(f"     found:    {step.found}")


def print_states(outcomes: Sequence[Outcome[State]], output: Format) -> None:
    if output is Format.JSON:
        _print_json(outcomes, _state)
        return
    columns = ("INSTANCE", "HOST", "WINDOWS", "VERSION", "CONTAINERD", "KUBELET", "DOCKER", "FREE")
    print_table(columns, [_row(outcome) for outcome in outcomes], right=("FREE",))


def print_words(outcomes: Sequence[Outcome[Any]], output: Format) -> None:
    """A word about each, such as the file that was written."""
    if output is Format.JSON:
        _print_json(outcomes, lambda result: {"result": str(result)})
        return
    for outcome in outcomes:
        if not outcome.failure:
            print(f"{outcome.name}: {outcome.result}")


def _row(outcome: Outcome[State]) -> tuple[str, ...]:
    state = outcome.result
    if state is None:
        return (outcome.name, *["-"] * 3, "failed", *["-"] * 3)
    return (
        outcome.name,
        state.hostname,
        state.build.describe(),
        state.version or "none",
        *(_runs(state, name) for name in (CONTAINERD, KUBELET)),
        next((said for said in (_runs(state, name) for name in DOCKER) if said != "none"), "none"),
        human_size(state.free_bytes),
    )


def _runs(state: State, name: str) -> str:
    service = state.service(name)
    return str(service.state) if service else "none"


def _state(state: State) -> dict[str, Any]:
    return {
        "hostname": state.hostname,
        "build": str(state.build),
        "product": state.product,
        "version": state.version,
        "features": {name: str(found) for name, found in state.features.items()},
        "services": {one.name: str(one.state) for one in state.services.values()},
        "networks": [network.name for network in state.networks],
        "freeBytes": state.free_bytes,
    }


def _step(step: Step) -> dict[str, str]:
    return {
        "do": str(step.do),
        "target": step.target,
        "expected": step.expected,
        "found": step.found,
        "why": step.why,
    }


def _print_json(outcomes: Sequence[Outcome[Any]], shown: Callable[[Any], dict[str, Any]]) -> None:
    found = [
        {"instance": outcome.name, **(shown(outcome.result) if not outcome.failure else {})}
        | ({"failure": str(outcome.failure)} if outcome.failure else {})
        for outcome in outcomes
    ]
    print(json.dumps(found, indent=2))

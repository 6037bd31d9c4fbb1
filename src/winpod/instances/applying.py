"""Making an instance what it should be: read it, do the first step of the difference, read again.

A step that is still asked for after it was done has failed, whatever it returned. Nothing is
written down, so whoever was interrupted starts again and goes on. After a step only what it could
have changed is read; before all is called done, everything is.
"""

from __future__ import annotations

from collections.abc import Callable

from winpod.instances import surveying
from winpod.instances.acting import Deed, act
from winpod.instances.advice import advice_for
from winpod.instances.desired import Desired, Question
from winpod.instances.difference import difference, what_to_ask
from winpod.instances.errors import ContainerdNotRunning, StepFailed
from winpod.instances.paths import CONTAINERD_LOG
from winpod.instances.rebooting import Tell
from winpod.instances.removal import removal
from winpod.instances.scripts import decode
from winpod.instances.ssh import Host
from winpod.instances.state import State
from winpod.instances.steps import Do, Step
from winpod.instances.stopping import CONTAINERD
from winpod.instances.surveying import Part, survey, survey_parts
from winpod.windows.errors import WinpodError

Steps = Callable[[State, Desired], tuple[Step, ...]]

LOG_TAIL = 8192
LOG_LINES = 5
ROUNDS = 3
"""How often one step may be asked for again after everything was done: others may interfere."""


async def read(host: Host, desired: Desired) -> State:
    return await survey(host, what_to_ask(desired))


async def plan(host: Host, desired: Desired) -> tuple[Step, ...]:
    """What `apply` would do now."""
    return steps_of(host, difference, await read(host, desired), desired)


async def plan_removal(host: Host, desired: Desired) -> tuple[Step, ...]:
    return steps_of(host, removal, await read(host, desired), desired)


async def apply(host: Host, desired: Desired, tell: Tell) -> State:
    """Make it so, and return what the instance is like then."""
    return await _converge(host, desired, tell, difference)


async def remove(host: Host, desired: Desired, tell: Tell) -> State:
    """Take everything of ours off it."""
    return await _converge(host, desired, tell, removal)


async def _converge(host: Host, desired: Desired, tell: Tell, rules: Steps) -> State:
    await host.sweep()
    done: dict[tuple[Do, str], int] = {}
    while True:
        state = await read(host, desired)
        steps = steps_of(host, rules, state, desired)
        if not steps:
            return state
        while steps:
            first = steps[0]
            done[_key(first)] = done.get(_key(first), 0) + 1
            if done[_key(first)] > ROUNDS:
                raise await _failed(host, desired, first, first, "it was undone each time")
            tell(str(first))
            said = await act(Deed(host, desired, first, tell))
            state = await survey_parts(host, state, _changed_by(first, desired))
            steps = steps_of(host, rules, state, desired)
            again = next((step for step in steps if _key(step) == _key(first)), None)
            if again:
                raise await _failed(host, desired, first, again, said)


def steps_of(host: Host, rules: Steps, state: State, desired: Desired) -> tuple[Step, ...]:
    try:
        return rules(state, desired)
    except WinpodError as error:
        error.sentence = f"{host.name}: {error.sentence}"
        raise


def _key(step: Step) -> tuple[Do, str]:
    return step.do, step.target


def _changed_by(step: Step, desired: Desired) -> list[Part]:
    """Services depend on each other, so all of them are read again; a boot may change anything."""
    question = what_to_ask(desired)
    match step.do:
        case Do.RENAME_HOST:
            return [surveying.names_part()]
        case Do.ENABLE_FEATURE:
            return [surveying.feature_part(step.target)]
        case Do.REMOVE_NETWORK:
            return [surveying.machine_part()]
        case Do.MAKE_DIRECTORY:
            return [surveying.directory_part(step.target)]
        case Do.REMOVE_DIRECTORY:
            return _under(step.target, question)
        case Do.PUT_FILE | Do.REMOVE_FILE:
            return [surveying.file_part(step.target), surveying.version_part()]
        case Do.PULL_IMAGE:
            return [surveying.images_part()]
        case Do.REBOOT:
            return surveying.every_part(question)
        case _:
            return [surveying.service_part(name) for name in question.services]


def _under(directory: str, question: Question) -> list[Part]:
    beneath = [path for path in question.files if path.startswith(f"{directory}\\")]
    return [
        *map(surveying.directory_part, question.directories),
        *map(surveying.file_part, beneath),
        surveying.version_part(),
    ]


async def _failed(host: Host, desired: Desired, step: Step, now: Step, said: str) -> StepFailed:
    if step.do is Do.START_SERVICE and step.target == CONTAINERD:
        log = decode(await host.tail(CONTAINERD_LOG, LOG_TAIL))
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        return ContainerdNotRunning(host.name, step, now.found, said, lines[-LOG_LINES:])
    return StepFailed(host.name, step, f"{now.found} ({said})", advice_for(step, desired))

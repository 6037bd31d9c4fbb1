"""Making an instance what it should be: read it, do the first step of the difference, read again.

A step that is still asked for after it was done has failed, whatever it returned. Nothing is
written down, so whoever was interrupted starts again and goes on. After a step only what it could
have changed is read; before all is called done, everything is. Small steps of one kind that follow
each other are done in one go, and each is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from winpod.instances.errors import ContainerdNotRunning, StepFailed
from winpod.instances.paths import CONTAINERD_LOG
from winpod.instances.remote import parts
from winpod.instances.remote.acting import lines_of, seconds_for, send, wait_for
from winpod.instances.remote.parts import Part
from winpod.instances.remote.rebooting import Tell
from winpod.instances.remote.scripts import decode
from winpod.instances.remote.ssh import Host
from winpod.instances.remote.surveying import run_and_survey, survey, survey_parts
from winpod.instances.rules.advice import advice_for
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.difference import difference, what_to_ask
from winpod.instances.rules.removal import removal
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Do, Step
from winpod.instances.rules.stopping import CONTAINERD
from winpod.windows.errors import WinpodError

Steps = Callable[[State, Desired], tuple[Step, ...]]

LOG_TAIL = 8192
LOG_LINES = 5
_SMALL = {
    Do.REMOVE_POD,
    Do.MAKE_DIRECTORY,
    Do.REMOVE_DIRECTORY,
    Do.REMOVE_FILE,
    Do.CREATE_SERVICE,
}
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
    """Take everything of ours off it, the scripts of whoever was killed on the way too."""
    state = await _converge(host, desired, tell, removal)
    await host.sweep(older_than=0.0)
    return state


async def _converge(host: Host, desired: Desired, tell: Tell, rules: Steps) -> State:
    await host.sweep()
    done: Counter[tuple[Do, str]] = Counter()
    while True:
        state = await read(host, desired)
        steps = steps_of(host, rules, state, desired)
        if not steps:
            return state
        while steps:
            now = _together(steps, desired)
            for step in now:
                tell(str(step))
                done[_key(step)] += 1
                if done[_key(step)] > ROUNDS:
                    raise await _failed(host, desired, step, step, "it was undone each time")
            said, state = await _do(host, desired, now, state, tell)
            steps = steps_of(host, rules, state, desired)
            left = {_key(step): step for step in steps}
            for step, word in zip(now, said, strict=True):
                if again := left.get(_key(step)):
                    raise await _failed(host, desired, step, again, word)


def _together(steps: tuple[Step, ...], desired: Desired) -> tuple[Step, ...]:
    """The first step, and those after it that are as small and of its kind."""
    first = steps[0]
    if not _is_small(first, desired):
        return (first,)
    return tuple(takewhile(lambda step: step.do is first.do and _is_small(step, desired), steps))


def _is_small(step: Step, desired: Desired) -> bool:
    if step.do is Do.PUT_FILE:
        return desired.file(step.target).content is not None
    return step.do in _SMALL


async def _do(
    host: Host, desired: Desired, steps: Sequence[Step], state: State, tell: Tell
) -> tuple[list[str], State]:
    first, changed = steps[0], _changed_by(steps, desired)
    lines = [lines_of(step, desired) for step in steps]
    if not lines[0]:
        with _doing(host, desired, steps):
            said = await wait_for(first, host, tell)
            return [said], await survey_parts(host, state, changed)
    if first.do is Do.PUT_FILE:
        for step in steps:
            with _doing(host, desired, [step]):
                await send(step, desired, host)
    with _doing(host, desired, steps):
        seconds = seconds_for(first, host.patience.run)
        return await run_and_survey(host, lines, state, changed, seconds)


@contextmanager
def _doing(host: Host, desired: Desired, steps: Sequence[Step]) -> Iterator[None]:
    """What cuts a step off is told with the step; what kind of trouble it is stays."""
    try:
        yield
    except WinpodError as error:
        step, more = steps[0], f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        what = error.sentence.removeprefix(f"{host.name}: ")
        error.sentence = (
            f"{host.name}: could not {step.title}{more}: expected {step.expected}, found "
            f"{step.found}, and then: {what}"
        )
        error.advice = error.advice or advice_for(step, desired)
        raise


def steps_of(host: Host, rules: Steps, state: State, desired: Desired) -> tuple[Step, ...]:
    try:
        return rules(state, desired)
    except WinpodError as error:
        error.sentence = f"{host.name}: {error.sentence}"
        raise


def _key(step: Step) -> tuple[Do, str]:
    return step.do, step.target


def _changed_by(steps: Sequence[Step], desired: Desired) -> list[Part]:
    """What steps of one kind may have changed. A boot may change anything."""
    question, targets = what_to_ask(desired), [step.target for step in steps]
    match steps[0].do:
        case Do.ENABLE_FEATURE:
            return list(map(parts.feature_part, targets))
        case Do.REMOVE_NETWORK:
            return [parts.machine_part()]
        case Do.MAKE_DIRECTORY:
            return list(map(parts.directory_part, targets))
        case Do.REMOVE_DIRECTORY:
            within = tuple(f"{target}\\" for target in targets)
            files = [path for path in question.files if path.startswith(within)]
            directories = map(parts.directory_part, question.directories)
            return [*directories, *map(parts.file_part, files), parts.version_part()]
        case Do.PUT_FILE | Do.REMOVE_FILE:
            return [*map(parts.file_part, targets), parts.version_part()]
        case Do.REMOVE_POD:
            return [parts.pods_part()]
        case Do.PULL_IMAGE:
            return [parts.images_part()]
        case Do.REBOOT:
            return parts.every_part(question)
        case Do.START_SERVICE:
            return [parts.service_part(service.name) for service in desired.services]
        case _:
            return list(map(parts.service_part, targets))


async def _failed(host: Host, desired: Desired, step: Step, now: Step, said: str) -> StepFailed:
    if step.do is Do.START_SERVICE and step.target == CONTAINERD:
        return ContainerdNotRunning(host.name, step, now.found, said, await _end_of_log(host))
    return StepFailed(host.name, step, f"{now.found} ({said})", advice_for(step, desired))


async def _end_of_log(host: Host) -> list[str]:
    """That it cannot be read is no reason to tell something else than what failed."""
    try:
        log = decode(await host.get(CONTAINERD_LOG, LOG_TAIL) or b"")
    except WinpodError as error:
        return [f"({error.sentence})"]
    return [line.strip() for line in log.splitlines() if line.strip()][-LOG_LINES:]

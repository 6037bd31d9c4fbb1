"""Convergence: observe, execute the first step of the diff, observe again.

A step that is still required after it was executed has failed, whatever it returned. Nothing is
recorded, so an interrupted run is continued by the next one. After a step only the facts it could
have changed are read; before the instance is reported as converged, all are. Small consecutive
steps of one kind run in one script, and each is verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from winpod.errors import WinpodError
from winpod.instances.errors import ContainerdNotRunning, StepFailed
from winpod.instances.paths import CONTAINERD_LOG
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.diff import diff, fact_query, removal_steps
from winpod.instances.planner.state import CONTAINERD, InstanceState
from winpod.instances.planner.steps import Step, StepKind
from winpod.instances.ssh import facts
from winpod.instances.ssh.executor import run_step, step_script, step_timeout, upload_file
from winpod.instances.ssh.facts import FactPart, collect_facts, collect_parts, run_and_collect
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.reboot import ProgressCallback
from winpod.instances.ssh.scripts import decode_output

RETRY = "and run the command again: it continues where it stopped."

_ADVICE = {
    StepKind.ENABLE_FEATURE: r"Check C:\Windows\Logs\DISM\dism.log for the cause,",
    StepKind.REBOOT: "Check the console of the machine, restart it manually,",
    StepKind.STOP_SERVICE: "Check what blocks it, stop it (sc.exe stop {target}, taskkill),",
    StepKind.REMOVE_SERVICE: "Close programs that show services (mmc), or restart the host,",
    StepKind.REMOVE_POD: (
        "Check its state in containerd (crictl inspectp {target}), or restart containerd,"
    ),
    StepKind.REMOVE_NETWORK: (
        "Check what still uses the network (Get-HnsEndpoint), or restart the host,"
    ),
    StepKind.MAKE_DIRECTORY: (
        "Check whether a file has that name, and whether drive C: has free space,"
    ),
    StepKind.REMOVE_DIRECTORY: "Check which program has files in {target} open, stop it,",
    StepKind.REMOVE_FILE: "Check which program has {target} open, stop it,",
    StepKind.CREATE_SERVICE: (
        "Check whether one of that name is marked for deletion, restart the host,"
    ),
    StepKind.CHANGE_SERVICE: "Check whether a policy or another program changes the service,",
    StepKind.START_SERVICE: (
        r"Check its log below C:\var\log, or `winpod instance gather`; fix the cause,"
    ),
    StepKind.PULL_IMAGE: "Check that the instance can reach the image's registry,",
}


def step_hint(step: Step, desired: DesiredState) -> str:
    if step.kind is StepKind.PUT_FILE:
        return f"{_about_file(step.target, desired)} {RETRY}"
    return f"{_ADVICE[step.kind].format(target=step.target)} {RETRY}"


def _about_file(path: str, desired: DesiredState) -> str:
    users = desired.file(path).used_by
    holder = f"the service {' or '.join(users)}" if users else "a program"
    return f"Check whether {holder} has the file open, and whether drive C: has free space,"


Steps = Callable[[InstanceState, DesiredState], tuple[Step, ...]]

LOG_TAIL = 8192
LOG_LINES = 5
_SMALL_STEPS = {
    StepKind.REMOVE_POD,
    StepKind.MAKE_DIRECTORY,
    StepKind.REMOVE_DIRECTORY,
    StepKind.REMOVE_FILE,
    StepKind.CREATE_SERVICE,
}
MAX_ATTEMPTS = 3
"""How often a step may be required again after it succeeded: another program may interfere."""


async def read_state(host: SshHost, desired: DesiredState) -> InstanceState:
    return await collect_facts(host, fact_query(desired))


async def plan(host: SshHost, desired: DesiredState) -> tuple[Step, ...]:
    """Return the steps that `converge` would execute now."""
    return next_steps(host, diff, await read_state(host, desired), desired)


async def plan_removal(host: SshHost, desired: DesiredState) -> tuple[Step, ...]:
    return next_steps(host, removal_steps, await read_state(host, desired), desired)


async def converge(
    host: SshHost, desired: DesiredState, progress: ProgressCallback
) -> InstanceState:
    """Bring the instance to the desired state, and return the observed state."""
    return await _converge(host, desired, progress, diff)


async def remove(host: SshHost, desired: DesiredState, progress: ProgressCallback) -> InstanceState:
    """Remove everything of winpod, including scripts left by killed processes."""
    state = await _converge(host, desired, progress, removal_steps)
    await host.remove_stale_scripts(older_than=0.0)
    return state


async def _converge(
    host: SshHost, desired: DesiredState, progress: ProgressCallback, plan_steps: Steps
) -> InstanceState:
    await host.remove_stale_scripts()
    attempts: Counter[tuple[StepKind, str]] = Counter()
    while True:
        state = await read_state(host, desired)
        steps = next_steps(host, plan_steps, state, desired)
        if not steps:
            return state
        while steps:
            batch = _batch(steps, desired)
            for step in batch:
                progress(str(step))
                attempts[_key(step)] += 1
                if attempts[_key(step)] > MAX_ATTEMPTS:
                    raise await _failed(host, desired, step, step, "it was reverted each time")
            output, state = await _execute(host, desired, batch, state, progress)
            steps = next_steps(host, plan_steps, state, desired)
            remaining = {_key(step): step for step in steps}
            for step, line in zip(batch, output, strict=True):
                if still_required := remaining.get(_key(step)):
                    raise await _failed(host, desired, step, still_required, line)


def _batch(steps: tuple[Step, ...], desired: DesiredState) -> tuple[Step, ...]:
    """Return the first step, and the following small steps of its kind."""
    first = steps[0]
    if not _is_small(first, desired):
        return (first,)
    return tuple(
        takewhile(lambda step: step.kind is first.kind and _is_small(step, desired), steps)
    )


def _is_small(step: Step, desired: DesiredState) -> bool:
    if step.kind is StepKind.PUT_FILE:
        return desired.file(step.target).content is not None
    return step.kind in _SMALL_STEPS


async def _execute(
    host: SshHost,
    desired: DesiredState,
    steps: Sequence[Step],
    state: InstanceState,
    progress: ProgressCallback,
) -> tuple[list[str], InstanceState]:
    first, changed = steps[0], _changed_by(steps, desired)
    lines = [step_script(step, desired) for step in steps]
    if not lines[0]:
        with _step_context(host, desired, steps):
            output = await run_step(first, host, progress)
            return [output], await collect_parts(host, state, changed)
    if first.kind is StepKind.PUT_FILE:
        for step in steps:
            with _step_context(host, desired, [step]):
                await upload_file(step, desired, host)
    with _step_context(host, desired, steps):
        seconds = step_timeout(first, host.timeouts.run)
        return await run_and_collect(host, lines, state, changed, seconds)


@contextmanager
def _step_context(host: SshHost, desired: DesiredState, steps: Sequence[Step]) -> Iterator[None]:
    """Add the step to errors raised while it runs; the type of the error stays."""
    try:
        yield
    except WinpodError as error:
        step, others = steps[0], f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        cause = error.message.removeprefix(f"{host.name}: ")
        error.message = (
            f"{host.name}: could not {step.title}{others}: expected {step.expected}, found "
            f"{step.found}; {cause}"
        )
        error.hint = error.hint or step_hint(step, desired)
        raise


def next_steps(
    host: SshHost, plan_steps: Steps, state: InstanceState, desired: DesiredState
) -> tuple[Step, ...]:
    try:
        return plan_steps(state, desired)
    except WinpodError as error:
        error.message = f"{host.name}: {error.message}"
        raise


def _key(step: Step) -> tuple[StepKind, str]:
    return step.kind, step.target


def _changed_by(steps: Sequence[Step], desired: DesiredState) -> list[FactPart]:
    """Return the facts that steps of one kind may have changed; a reboot may change anything."""
    query, targets = fact_query(desired), [step.target for step in steps]
    match steps[0].kind:
        case StepKind.ENABLE_FEATURE:
            return list(map(facts.feature_part, targets))
        case StepKind.REMOVE_NETWORK:
            return [facts.machine_part()]
        case StepKind.MAKE_DIRECTORY:
            return list(map(facts.directory_part, targets))
        case StepKind.REMOVE_DIRECTORY:
            within = tuple(f"{target}\\" for target in targets)
            files = [path for path in query.files if path.startswith(within)]
            directories = map(facts.directory_part, query.directories)
            return [*directories, *map(facts.file_part, files), facts.version_part()]
        case StepKind.PUT_FILE | StepKind.REMOVE_FILE:
            return [*map(facts.file_part, targets), facts.version_part()]
        case StepKind.REMOVE_POD:
            return [facts.pods_part()]
        case StepKind.PULL_IMAGE:
            return [facts.images_part()]
        case StepKind.REBOOT:
            return facts.every_part(query)
        case StepKind.START_SERVICE:
            return [facts.service_part(service.name) for service in desired.services]
        case _:
            return list(map(facts.service_part, targets))


async def _failed(
    host: SshHost, desired: DesiredState, step: Step, current: Step, output: str
) -> StepFailed:
    if step.kind is StepKind.START_SERVICE and step.target == CONTAINERD:
        return ContainerdNotRunning(host.name, step, current.found, output, await _log_tail(host))
    return StepFailed(host.name, step, f"{current.found} ({output})", step_hint(step, desired))


async def _log_tail(host: SshHost) -> list[str]:
    """Return the last lines of containerd's log. A failure to read it must not hide the error."""
    try:
        log = decode_output(await host.get(CONTAINERD_LOG, LOG_TAIL) or b"")
    except WinpodError as error:
        return [f"({error.message})"]
    return [line.strip() for line in log.splitlines() if line.strip()][-LOG_LINES:]

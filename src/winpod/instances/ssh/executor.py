"""Execution of steps. Their effect is judged by the next observation, not by exit codes.

Most steps are script lines, which run together with others and with the facts read afterwards. The
others have to wait for something, which is done here and not in the script, so that it can be
reported and cancelled. The last line of output is kept for the error message of a failed step.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping

from winpod.instances import paths
from winpod.instances.planner.desired import DesiredService, DesiredState
from winpod.instances.planner.state import ServiceState
from winpod.instances.planner.steps import Step, StepKind
from winpod.instances.ssh import scripts
from winpod.instances.ssh.facts import read_running
from winpod.instances.ssh.host import NEW_FILE_SUFFIX, SshHost
from winpod.instances.ssh.reboot import ProgressCallback, reboot
from winpod.instances.ssh.scripts import call_program, quote_path

STOP_SECONDS = 120.0
START_SECONDS = 90.0
REMOVE_SECONDS = 15.0
_TIMEOUTS = {
    StepKind.ENABLE_FEATURE: 3600.0,
    StepKind.PULL_IMAGE: 3600.0,
    StepKind.REMOVE_DIRECTORY: 1800.0,
}
_PID = re.compile(r"^\s*PID\s*:\s*(\d+)", re.MULTILINE)
_SYSTEM, _ADMINISTRATORS, _USERS = "*S-1-5-18", "*S-1-5-32-544", "*S-1-5-32-545"


def step_script(step: Step, desired: DesiredState) -> tuple[str, ...]:
    """Return the script lines of a step; none if it has to wait for something."""
    build_lines = _SCRIPTS.get(step.kind)
    return (
        tuple(f"{line} 2>&1" for line in build_lines(step.target, desired)) if build_lines else ()
    )


def step_timeout(step: Step, default: float) -> float:
    return _TIMEOUTS.get(step.kind, default)


async def run_step(step: Step, host: SshHost, progress: ProgressCallback) -> str:
    """Run a step that has no script."""
    if step.kind is StepKind.REBOOT:
        return await reboot(host, progress)
    return await _WAITING_STEPS[step.kind](host, step.target)


async def upload_file(step: Step, desired: DesiredState, host: SshHost) -> None:
    """Upload a file next to the old one, which stays until the new one is complete."""
    file, new = desired.file(step.target), step.target + NEW_FILE_SUFFIX
    if file.is_secret:
        rights = (f"{_SYSTEM}:F", f"{_ADMINISTRATORS}:F")
        restrict = call_program("icacls.exe", new, "/inheritance:r", "/grant:r", *rights)
        await host.run([f"type nul >{quote_path(new)}", restrict])
    content = file.content if file.content is not None else file.source
    try:
        await host.put(new, content or b"")
    except BaseException:
        await host.remove_quietly(new)
        raise


def service_lines(service: DesiredService, verb: str) -> tuple[str, ...]:
    """Return the sc commands.

    sc takes an option and its value as two arguments, delays in milliseconds, and `/` for no
    dependencies.
    """
    name, restarts = service.name, "/".join(f"restart/{delay}" for delay in service.restarts)
    options = ["binPath=", service.command_line, "start=", "auto"]
    if service.depends or verb == "config":
        options += ["depend=", "/".join(service.depends) or "/"]
    reset = str(service.reset_seconds)
    return (
        call_program("sc.exe", verb, name, *options),
        call_program("sc.exe", "description", name, service.description),
        call_program("sc.exe", "failure", name, "reset=", reset, "actions=", restarts),
    )


def _enable(feature: str, desired: DesiredState) -> tuple[str, ...]:
    del desired
    switches = ("/online", "/english", "/enable-feature", f"/featurename:{feature}")
    return (call_program("dism.exe", *switches, "/all", "/norestart", "/quiet"),)


def _make_directory(path: str, desired: DesiredState) -> tuple[str, ...]:
    r"""Create a directory.

    `C:\k` is writable for administrators only: privileged services run from it.
    """
    del desired
    if path != paths.ROOT:
        return (f"mkdir {quote_path(path)}",)
    rights = (f"{_SYSTEM}:(OI)(CI)F", f"{_ADMINISTRATORS}:(OI)(CI)F", f"{_USERS}:(OI)(CI)RX")
    restrict = call_program("icacls.exe", path, "/inheritance:r", "/grant:r", *rights)
    return (f"mkdir {quote_path(path)}", restrict)


def _remove_directory(path: str, desired: DesiredState) -> tuple[str, ...]:
    """Remove managed directories with their content, shared ones only if empty."""
    return (f"rd {'/s /q ' if path in desired.managed_directories else ''}{quote_path(path)}",)


def _move(path: str, desired: DesiredState) -> tuple[str, ...]:
    del desired
    new = quote_path(path + NEW_FILE_SUFFIX)
    return (f"move /y {new} {quote_path(path)}", f"if exist {new} del /f /q {new}")


def _crictl(*arguments: str) -> tuple[str, ...]:
    endpoint = ("--runtime-endpoint", paths.RUNTIME_PIPE, "--timeout", "55m")
    return (call_program(rf"{paths.BIN}\crictl.exe", *endpoint, *arguments),)


_SCRIPTS: Mapping[StepKind, Callable[[str, DesiredState], tuple[str, ...]]] = {
    StepKind.ENABLE_FEATURE: _enable,
    StepKind.REMOVE_POD: lambda pod, _: _crictl("rmp", "--force", pod),
    StepKind.REMOVE_NETWORK: lambda network, _: (scripts.remove_network(network),),
    StepKind.MAKE_DIRECTORY: _make_directory,
    StepKind.REMOVE_DIRECTORY: _remove_directory,
    StepKind.PUT_FILE: _move,
    StepKind.REMOVE_FILE: lambda path, _: (f"del /f /q {quote_path(path)}",),
    StepKind.CREATE_SERVICE: lambda name, desired: service_lines(desired.service(name), "create"),
    StepKind.CHANGE_SERVICE: lambda name, desired: service_lines(desired.service(name), "config"),
    StepKind.PULL_IMAGE: lambda image, _: _crictl("pull", image),
}


async def _stop(host: SshHost, name: str) -> str:
    """Stop a service and wait until its process has exited; before that its files are locked."""
    result = await host.run(
        [call_program("sc.exe", "queryex", name), call_program("sc.exe", "stop", name)]
    )
    pid = _PID.search(result.output)
    process = (
        call_program("tasklist.exe", "/fi", f"PID eq {pid[1]}", "/fo", "csv", "/nh")
        if pid
        else "rem"
    )

    async def is_stopped() -> bool:
        current = await host.run([call_program("sc.exe", "query", name), process])
        runs = pid is not None and pid[1] != "0" and f'"{pid[1]}"' in current.output
        return read_running(current.output) in (ServiceState.STOPPED, None) and not runs

    await _poll_until(is_stopped, STOP_SECONDS, host.timeouts.poll)
    return result.last_line


async def _start(host: SshHost, name: str) -> str:
    output = (await host.run([call_program("sc.exe", "start", name)])).last_line
    await _wait_service_state(
        host, name, lambda state: state is not ServiceState.STARTING, START_SECONDS
    )
    return output


async def _remove_service(host: SshHost, name: str) -> str:
    output = (await host.run([call_program("sc.exe", "delete", name)])).last_line
    await _wait_service_state(host, name, lambda state: state is None, REMOVE_SECONDS)
    return output


_WAITING_STEPS: Mapping[StepKind, Callable[[SshHost, str], Awaitable[str]]] = {
    StepKind.STOP_SERVICE: _stop,
    StepKind.START_SERVICE: _start,
    StepKind.REMOVE_SERVICE: _remove_service,
}


async def _wait_service_state(
    host: SshHost, name: str, holds: Callable[[ServiceState | None], bool], seconds: float
) -> None:
    async def is_reached() -> bool:
        return holds(read_running((await host.run([call_program("sc.exe", "query", name)])).output))

    await _poll_until(is_reached, seconds, host.timeouts.poll)


async def _poll_until(is_done: Callable[[], Awaitable[bool]], seconds: float, poll: float) -> None:
    """Poll until done or timed out; the next observation shows the result."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await is_done():
            return
        await asyncio.sleep(poll)

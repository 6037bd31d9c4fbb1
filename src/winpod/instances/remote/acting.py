"""Doing steps. What they did is for the next reading of the instance to say, not for an exit code.

Most steps are lines of a script, which can be run together with others and with the reading that
follows. The others have to wait for something; that is done here and not in the script, so that it
can be told and cancelled. Either way the last thing that was said is kept: it is worth a line when
the step turns out to have failed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping

from winpod.instances import paths
from winpod.instances.remote import powershell
from winpod.instances.remote.parts import read_running
from winpod.instances.remote.rebooting import Tell, reboot
from winpod.instances.remote.scripts import call, place
from winpod.instances.remote.ssh import NEW, Host
from winpod.instances.rules.desired import Desired, WantedService
from winpod.instances.rules.state import Running
from winpod.instances.rules.steps import Do, Step

STOP_SECONDS = 120.0
START_SECONDS = 90.0
GONE_SECONDS = 15.0
_LONG = {Do.ENABLE_FEATURE: 3600.0, Do.PULL_IMAGE: 3600.0, Do.REMOVE_DIRECTORY: 1800.0}
_PID = re.compile(r"^\s*PID\s*:\s*(\d+)", re.MULTILINE)
_SYSTEM, _ADMINISTRATORS, _USERS = "*S-1-5-18", "*S-1-5-32-544", "*S-1-5-32-545"


def lines_of(step: Step, desired: Desired) -> tuple[str, ...]:
    """What to run for a step; none where it takes more than that."""
    make = _LINES.get(step.do)
    return tuple(f"{line} 2>&1" for line in make(step.target, desired)) if make else ()


def seconds_for(step: Step, usual: float) -> float:
    return _LONG.get(step.do, usual)


async def wait_for(step: Step, host: Host, tell: Tell) -> str:
    """Do a step that is more than lines."""
    if step.do is Do.REBOOT:
        return await reboot(host, tell)
    return await _WAITS[step.do](host, step.target)


async def send(step: Step, desired: Desired, host: Host) -> None:
    """Put a file beside the old one, which stays until the new one is whole."""
    file, new = desired.file(step.target), step.target + NEW
    if file.is_secret:
        rights = (f"{_SYSTEM}:F", f"{_ADMINISTRATORS}:F")
        closed = call("icacls.exe", new, "/inheritance:r", "/grant:r", *rights)
        await host.run([f"type nul >{place(new)}", closed])
    content = file.content if file.content is not None else file.source
    try:
        await host.put(new, content or b"")
    except BaseException:
        await host.tidy(new)
        raise


def service_lines(service: WantedService, verb: str) -> tuple[str, ...]:
    """sc takes a name and its value as two words, delays in milliseconds, and `/` for no names."""
    name, restarts = service.name, "/".join(f"restart/{delay}" for delay in service.restarts)
    options = ["binPath=", service.command_line, "start=", "auto"]
    if service.depends or verb == "config":
        options += ["depend=", "/".join(service.depends) or "/"]
    reset = str(service.reset_seconds)
    return (
        call("sc.exe", verb, name, *options),
        call("sc.exe", "description", name, service.description),
        call("sc.exe", "failure", name, "reset=", reset, "actions=", restarts),
    )


def _enable(feature: str, desired: Desired) -> tuple[str, ...]:
    del desired
    switches = ("/online", "/english", "/enable-feature", f"/featurename:{feature}")
    return (call("dism.exe", *switches, "/all", "/norestart", "/quiet"),)


def _make_directory(path: str, desired: Desired) -> tuple[str, ...]:
    r"""`C:\k` is for administrators to write: from it, services are run that may do anything."""
    del desired
    if path != paths.ROOT:
        return (f"mkdir {place(path)}",)
    rights = (f"{_SYSTEM}:(OI)(CI)F", f"{_ADMINISTRATORS}:(OI)(CI)F", f"{_USERS}:(OI)(CI)RX")
    closed = call("icacls.exe", path, "/inheritance:r", "/grant:r", *rights)
    return (f"mkdir {place(path)}", closed)


def _remove_directory(path: str, desired: Desired) -> tuple[str, ...]:
    """What is ours alone goes with all that is in it; what others may use, only when empty."""
    return (f"rd {'/s /q ' if path in desired.owned else ''}{place(path)}",)


def _move(path: str, desired: Desired) -> tuple[str, ...]:
    del desired
    new = place(path + NEW)
    return (f"move /y {new} {place(path)}", f"if exist {new} del /f /q {new}")


def _crictl(*words: str) -> tuple[str, ...]:
    endpoint = ("--runtime-endpoint", paths.RUNTIME_PIPE, "--timeout", "55m")
    return (call(rf"{paths.BIN}\crictl.exe", *endpoint, *words),)


_LINES: Mapping[Do, Callable[[str, Desired], tuple[str, ...]]] = {
    Do.ENABLE_FEATURE: _enable,
    Do.REMOVE_POD: lambda pod, _: _crictl("rmp", "--force", pod),
    Do.REMOVE_NETWORK: lambda network, _: (powershell.remove_network(network),),
    Do.MAKE_DIRECTORY: _make_directory,
    Do.REMOVE_DIRECTORY: _remove_directory,
    Do.PUT_FILE: _move,
    Do.REMOVE_FILE: lambda path, _: (f"del /f /q {place(path)}",),
    Do.CREATE_SERVICE: lambda name, desired: service_lines(desired.service(name), "create"),
    Do.CHANGE_SERVICE: lambda name, desired: service_lines(desired.service(name), "config"),
    Do.PULL_IMAGE: lambda image, _: _crictl("pull", image),
}


async def _stop(host: Host, name: str) -> str:
    """Until its process is gone too: before that its files cannot be replaced."""
    asked = await host.run([call("sc.exe", "queryex", name), call("sc.exe", "stop", name)])
    pid = _PID.search(asked.output)
    process = call("tasklist.exe", "/fi", f"PID eq {pid[1]}", "/fo", "csv", "/nh") if pid else "rem"

    async def is_over() -> bool:
        now = await host.run([call("sc.exe", "query", name), process])
        runs = pid is not None and pid[1] != "0" and f'"{pid[1]}"' in now.output
        return read_running(now.output) in (Running.STOPPED, None) and not runs

    await _until(is_over, STOP_SECONDS, host.patience.poll)
    return asked.last_line


async def _start(host: Host, name: str) -> str:
    said = (await host.run([call("sc.exe", "start", name)])).last_line
    await _until_state(host, name, lambda state: state is not Running.STARTING, START_SECONDS)
    return said


async def _remove_service(host: Host, name: str) -> str:
    said = (await host.run([call("sc.exe", "delete", name)])).last_line
    await _until_state(host, name, lambda state: state is None, GONE_SECONDS)
    return said


_WAITS: Mapping[Do, Callable[[Host, str], Awaitable[str]]] = {
    Do.STOP_SERVICE: _stop,
    Do.START_SERVICE: _start,
    Do.REMOVE_SERVICE: _remove_service,
}


async def _until_state(
    host: Host, name: str, holds: Callable[[Running | None], bool], seconds: float
) -> None:
    async def is_so() -> bool:
        return holds(read_running((await host.run([call("sc.exe", "query", name)])).output))

    await _until(is_so, seconds, host.patience.poll)


async def _until(is_done: Callable[[], Awaitable[bool]], seconds: float, poll: float) -> None:
    """Or until the time is over: what there is then, the next reading tells."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await is_done():
            return
        await asyncio.sleep(poll)

"""Doing a step. What it did is for the next reading of the instance to say, not for an exit code.

Each deed returns the last thing that was said, which is worth a line when the step turns out to
have failed. Waiting is done here and not in the script, so that it can be told and cancelled.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from winpod.instances import paths, powershell
from winpod.instances.desired import Desired, WantedService
from winpod.instances.rebooting import Tell, reboot
from winpod.instances.scripts import call, place
from winpod.instances.ssh import NEW, Answer, Host
from winpod.instances.state import Running
from winpod.instances.steps import Do, Step
from winpod.instances.surveying import read_running

FEATURE_SECONDS = 1800.0
PULL_SECONDS = 1800.0
STOP_SECONDS = 120.0
START_SECONDS = 90.0
GONE_SECONDS = 15.0
POLL_SECONDS = 1.0
_PID = re.compile(r"^\s*PID\s*:\s*(\d+)", re.MULTILINE)
_SYSTEM, _ADMINISTRATORS, _USERS = "*S-1-5-18", "*S-1-5-32-544", "*S-1-5-32-545"


@dataclass(frozen=True, slots=True)
class Deed:
    """A step on a host, as part of a whole."""

    host: Host
    desired: Desired
    step: Step
    tell: Tell

    @property
    def target(self) -> str:
        return self.step.target

    async def run(self, *lines: str, seconds: float = 300.0) -> Answer:
        return await self.host.run(lines, seconds)


async def act(deed: Deed) -> str:
    return await _DEEDS[deed.step.do](deed)


async def _rename(deed: Deed) -> str:
    return (await deed.run(powershell.rename_computer(deed.target))).last_line


async def _enable(deed: Deed) -> str:
    switches = ("/online", "/english", "/enable-feature", f"/featurename:{deed.target}")
    line = call("dism.exe", *switches, "/all", "/norestart", "/quiet")
    return (await deed.run(line, seconds=FEATURE_SECONDS)).last_line


async def _reboot(deed: Deed) -> str:
    return await reboot(deed.host, deed.tell)


async def _stop(deed: Deed) -> str:
    """Until its process is gone too: before that its files cannot be replaced."""
    name = deed.target
    asked = await deed.run(call("sc.exe", "queryex", name), call("sc.exe", "stop", name))
    pid = _PID.search(asked.output)
    process = call("tasklist.exe", "/fi", f"PID eq {pid[1]}", "/fo", "csv", "/nh") if pid else "rem"

    async def is_over() -> bool:
        now = await deed.run(call("sc.exe", "query", name), process)
        runs = pid is not None and pid[1] != "0" and f'"{pid[1]}"' in now.output
        return read_running(now.output) in (Running.STOPPED, None) and not runs

    await _until(is_over, STOP_SECONDS)
    return asked.last_line


async def _start(deed: Deed) -> str:
    name = deed.target
    said = (await deed.run(call("sc.exe", "start", name))).last_line

    async def is_decided() -> bool:
        now = read_running((await deed.run(call("sc.exe", "query", name))).output)
        return now is not Running.STARTING

    await _until(is_decided, START_SECONDS)
    return said


async def _remove_service(deed: Deed) -> str:
    name = deed.target
    said = (await deed.run(call("sc.exe", "delete", name))).last_line

    async def is_gone() -> bool:
        return read_running((await deed.run(call("sc.exe", "query", name))).output) is None

    await _until(is_gone, GONE_SECONDS)
    return said


async def _create(deed: Deed) -> str:
    return await _install(deed, "create")


async def _change(deed: Deed) -> str:
    return await _install(deed, "config")


async def _install(deed: Deed, verb: str) -> str:
    service = deed.desired.service(deed.target)
    return (await deed.run(*service_lines(service, verb))).last_line


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


async def _remove_network(deed: Deed) -> str:
    return (await deed.run(powershell.remove_network(deed.target))).last_line


async def _make_directory(deed: Deed) -> str:
    r"""`C:\k` is for administrators to write: from it, services are run that may do anything."""
    lines = [f"mkdir {place(deed.target)}"]
    if deed.target == paths.ROOT:
        rights = (f"{_SYSTEM}:(OI)(CI)F", f"{_ADMINISTRATORS}:(OI)(CI)F", f"{_USERS}:(OI)(CI)RX")
        lines.append(call("icacls.exe", deed.target, "/inheritance:r", "/grant:r", *rights))
    return (await deed.run(*lines)).last_line


async def _remove_directory(deed: Deed) -> str:
    """What is ours alone goes with all that is in it; what others may use, only when empty."""
    how = "rd /s /q" if deed.target in deed.desired.owned else "rd"
    return (await deed.run(f"{how} {place(deed.target)}", seconds=1800.0)).last_line


async def _put(deed: Deed) -> str:
    """Beside the old file first, which stays until the new one is whole."""
    file, new = deed.desired.file(deed.target), f"{deed.target}{NEW}"
    if file.is_secret:
        rights = (f"{_SYSTEM}:F", f"{_ADMINISTRATORS}:F")
        closed = call("icacls.exe", new, "/inheritance:r", "/grant:r", *rights)
        await deed.run(f"type nul >{place(new)}", closed)
    content = file.content if file.content is not None else file.source
    try:
        await deed.host.put(new, content or b"")
    except BaseException:
        await deed.host.tidy(new)
        raise
    moved = await deed.run(
        f"move /y {place(new)} {place(deed.target)}",
        f"if exist {place(new)} del /f /q {place(new)}",
    )
    return moved.last_line


async def _remove_file(deed: Deed) -> str:
    return (await deed.run(f"del /f /q {place(deed.target)}")).last_line


async def _pull(deed: Deed) -> str:
    endpoint = ("--runtime-endpoint", paths.RUNTIME_PIPE, "--timeout", "30m")
    line = call(rf"{paths.BIN}\crictl.exe", *endpoint, "pull", deed.target)
    return (await deed.run(line, seconds=PULL_SECONDS)).last_line


async def _until(is_done: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Or until the time is over: what there is then, the next reading tells."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await is_done():
            return
        await asyncio.sleep(POLL_SECONDS)


_DEEDS: Mapping[Do, Callable[[Deed], Awaitable[str]]] = {
    Do.RENAME_HOST: _rename,
    Do.ENABLE_FEATURE: _enable,
    Do.REBOOT: _reboot,
    Do.STOP_SERVICE: _stop,
    Do.REMOVE_SERVICE: _remove_service,
    Do.REMOVE_NETWORK: _remove_network,
    Do.MAKE_DIRECTORY: _make_directory,
    Do.REMOVE_DIRECTORY: _remove_directory,
    Do.PUT_FILE: _put,
    Do.REMOVE_FILE: _remove_file,
    Do.CREATE_SERVICE: _create,
    Do.CHANGE_SERVICE: _change,
    Do.START_SERVICE: _start,
    Do.PULL_IMAGE: _pull,
}

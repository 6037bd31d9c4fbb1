"""Failures of a pod's microVM are reported, and leave nothing behind."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from operator import not_
from pathlib import Path

import pytest
from tests.support.e2e import windows_programs
from tests.support.e2e.command_line import Winpod
from tests.support.e2e.microvms import WAITS, begin, call, image, machines, until_said, winpod
from tests.support.e2e.waiting import eventually

from winpod.compute.errors import GuestError, MicroVmGone
from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.compute.hypervisor.qemu import QmpClient
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError

__all__ = ["image", "winpod"]

HYPERVISOR = ("--isolation", "hypervisor")
MANY = 20
MESSAGES = 5000


def _start(winpod: Winpod, image: str, name: str, line: str = WAITS) -> None:
    started = winpod("run", "-d", "--name", name, *HYPERVISOR, image, "cmd", "/c", line)
    assert started.returncode == 0, started.stderr


def _pid(winpod: Winpod, file: str) -> int:
    (found,) = (winpod.root / "runtime").glob(file)
    return int(found.read_text())


def _wait_exited(winpod: Winpod, name: str) -> None:
    eventually(
        lambda: winpod("inspect", name).stdout,
        lambda output: "CONTAINER_EXITED" in output,
    )


def _remove(winpod: Winpod, name: str) -> None:
    removed = winpod("rm", "-f", name)
    assert removed.returncode == 0, removed.stderr
    _assert_no_leftovers(winpod)


def _assert_no_leftovers(winpod: Winpod) -> None:
    """Wait for the cleanup that continues after the removal returned."""
    eventually(lambda: _leftovers(winpod), not_)


def _leftovers(winpod: Winpod) -> list[str]:
    runtime = winpod.root / "runtime"
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if "/vm/" in line]
    found = [line for line in mounts if str(runtime) in line]
    found += [str(file) for file in runtime.glob("sandboxes/*")]
    found += [str(file) for file in runtime.glob("leavings/*")]
    listed = subprocess.run(["pgrep", "-af", f"{runtime}/"], capture_output=True, text=True).stdout
    found += [line for line in listed.splitlines() if "qemu" in line or "virtiofsd" in line]
    return found


def _kill(file: str) -> Callable[[Winpod], object]:
    return lambda winpod: os.kill(_pid(winpod, file), signal.SIGKILL)


def _guest_request(winpod: Winpod, *request: str) -> str:
    """Stop the runtime, because only one client can connect, and send a request to the guest."""
    winpod.end_runtime()
    (control,) = (winpod.root / "runtime").glob("sandboxes/*/vm/control")

    async def send() -> bytes:
        guest = GuestClient(control)
        try:
            return await guest.request(*request)
        finally:
            guest.close()

    return asyncio.run(send()).decode()


def _panic(winpod: Winpod) -> None:
    with contextlib.suppress(MicroVmGone):
        _guest_request(winpod, "write", "/proc/sysrq-trigger", "c")


def _uptime(winpod: Winpod, name: str) -> float:
    """Return the uptime of the guest's kernel."""
    return float(winpod("exec", name, "cmd", "/c", r"type \\?\unix\proc\uptime").stdout.split()[0])


def test_paused_guest_continues_with_correct_clock(winpod: Winpod, image: str) -> None:
    _start(winpod, image, "late")
    before, start = _uptime(winpod, "late"), time.monotonic()
    (pid,) = machines(winpod)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(4.5)
    os.kill(pid, signal.SIGCONT)
    passed = time.monotonic() - start
    assert _uptime(winpod, "late") - before >= passed - 0.1
    _remove(winpod, "late")


@pytest.mark.parametrize(
    "fail",
    [
        pytest.param(_kill("sandboxes/*/vm/qemu.pid"), id="QEMU killed"),
        pytest.param(_kill("sandboxes/*/vm/drives.pid"), id="virtiofsd of drives killed"),
        pytest.param(_kill("sandboxes/*/vm/volumes.pid"), id="virtiofsd of volumes killed"),
        pytest.param(_panic, id="kernel panic"),
    ],
)
def test_pod_exits_when_its_microvm_dies(
    winpod: Winpod, image: str, fail: Callable[[Winpod], object]
) -> None:
    _start(winpod, image, "fails")
    until_said(winpod, "fails", "up")
    fail(winpod)
    _wait_exited(winpod, "fails")
    assert "the pod's microVM has ended" in winpod("inspect", "fails").stdout
    eventually(lambda: machines(winpod), not_)
    _remove(winpod, "fails")


def test_hung_guest_is_ended_and_calls_fail(winpod: Winpod, image: str) -> None:
    _start(winpod, image, "still")
    until_said(winpod, "still", "up")
    (inspected,) = json.loads(winpod("inspect", "still").stdout)
    request = api.ContainerStatusRequest(container_id=inspected["status"]["id"])
    spec = call(winpod, request).status.image
    _stop_processors(winpod)
    with pytest.raises(RemoteError, match="the pod's microVM"):
        begin(winpod, spec, inspected["sandbox"]["status"]["id"], "second", ["cmd", "/c", "ver"])
    _wait_exited(winpod, "still")
    assert "the pod's microVM has ended" in winpod("inspect", "still").stdout
    eventually(lambda: machines(winpod), not_)
    _remove(winpod, "still")


def _stop_processors(winpod: Winpod) -> None:
    (monitor,) = (winpod.root / "runtime").glob("sandboxes/*/vm/qmp")

    async def stop() -> None:
        async with QmpClient(monitor) as qmp:
            await qmp.execute("stop")

    asyncio.run(stop())


def test_container_exits_when_its_guest_connection_is_lost(winpod: Winpod, image: str) -> None:
    _start(winpod, image, "cut")
    until_said(winpod, "cut", "up")
    os.kill(_pid(winpod, "containers/*/shell/shell.pid"), signal.SIGKILL)
    _wait_exited(winpod, "cut")
    _remove(winpod, "cut")


def test_program_exceeding_guest_memory_is_oom_killed(winpod: Winpod, image: str) -> None:
    program = windows_programs.go_program(name="load")
    mount = ("-v", f"{program}:C:\\load.exe:ro")
    small = ("--annotation", "io.microsoft.virtualmachine.computetopology.memory.sizeinmb=512")
    options = ("-d", "--name", "greedy", *HYPERVISOR, *small, *mount)
    started = winpod("run", *options, image, "C:\\load.exe", "4000")
    assert started.returncode == 0, started.stderr
    _wait_exited(winpod, "greedy")
    assert "OOMKilled" in winpod("inspect", "greedy").stdout
    _remove(winpod, "greedy")


def test_runtime_killed_during_microvm_creation_leaves_nothing(winpod: Winpod, image: str) -> None:
    assert winpod("ps").returncode == 0
    for delay in (0.5, 1.0, 2.0):
        process = winpod.start(
            *("run", "--rm", *HYPERVISOR, image, "cmd", "/c", "ver"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay)
        winpod.end_runtime(signal.SIGKILL)
        process.wait(300)
        assert winpod("ps").returncode == 0
        for container in winpod("ps", "-aq").stdout.split():
            winpod("rm", "-f", container)
        _assert_no_leftovers(winpod)


def test_qemu_messages_caused_by_guest_do_not_use_disk(winpod: Winpod, image: str) -> None:
    program = windows_programs.linux_program("noisy")
    mount = ("-v", f"{program.parent}:C:\\noisy:ro")
    options = ("-d", "--name", "noisy", *HYPERVISOR, *mount)
    started = winpod("run", *options, image, "cmd", "/c", WAITS)
    assert started.returncode == 0, started.stderr
    (volume,) = (winpod.root / "runtime").glob("sandboxes/*/vm/volumes/*/*")
    inside = f"/volumes/{volume.parent.name}/{volume.name}/noisy"
    _guest_request(winpod, "run", "/run/noise", inside, str(MESSAGES))
    eventually(lambda: _result(winpod, "/run/noise"), lambda code: code == "0")
    assert _guest_request(winpod, "read", "/run/noise.said") == f"{MESSAGES}\n"
    (folder,) = (winpod.root / "runtime").glob("sandboxes/*/vm")
    assert sum(log.stat().st_blocks for log in folder.glob("*.log")) == 0
    assert winpod("exec", "noisy", "cmd", "/c", "echo still here").stdout == "still here\n"
    _remove(winpod, "noisy")


def _result(winpod: Winpod, file: str) -> str:
    try:
        return _guest_request(winpod, "read", file)
    except GuestError:
        return ""


@pytest.mark.alone
def test_twenty_microvms_run_concurrently(winpod: Winpod, image: str) -> None:
    names = [f"one-of-many-{number}" for number in range(MANY)]
    program = windows_programs.go_program(name="signals")
    options = (*HYPERVISOR, "-v", f"{program}:C:\\waits.exe:ro")
    processes = [
        winpod.start(
            *("run", "-d", "--name", name, *options, image, "C:\\waits.exe"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    errors = [item.communicate(timeout=900)[1].decode() for item in processes]
    assert [item.returncode for item in processes] == [0] * MANY, "".join(errors)
    assert len(machines(winpod)) == MANY
    for name in names:
        until_said(winpod, name, "waiting")
    listed = json.loads(winpod("inspect", *names).stdout)
    assert len({item["sandbox"]["status"]["network"]["ip"] for item in listed}) == MANY
    removed = winpod("rm", "-f", *names)
    assert removed.returncode == 0, removed.stderr
    _assert_no_leftovers(winpod)

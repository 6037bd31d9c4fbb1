"""What goes wrong with a pod's microVM: the pod tells the truth, and nothing of it is left."""

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

ISOLATED = ("--isolation", "hypervisor")
MANY = 20
NOISE = 5000


def _start(winpod: Winpod, image: str, name: str, line: str = WAITS) -> None:
    began = winpod("run", "-d", "--name", name, *ISOLATED, image, "cmd", "/c", line)
    assert began.returncode == 0, began.stderr


def _pid(winpod: Winpod, file: str) -> int:
    (found,) = (winpod.root / "runtime").glob(file)
    return int(found.read_text())


def _until_ended(winpod: Winpod, name: str) -> None:
    eventually(
        lambda: winpod("inspect", name).stdout,
        lambda told: "CONTAINER_EXITED" in told,
    )


def _remove(winpod: Winpod, name: str) -> None:
    removed = winpod("rm", "-f", name)
    assert removed.returncode == 0, removed.stderr
    _nothing_is_left(winpod)


def _nothing_is_left(winpod: Winpod) -> None:
    """What is cleared after a removal was answered, is waited for."""
    eventually(lambda: _left(winpod), not_)


def _left(winpod: Winpod) -> list[str]:
    runtime = winpod.root / "runtime"
    mounted = [line for line in Path("/proc/mounts").read_text().splitlines() if "/vm/" in line]
    found = [line for line in mounted if str(runtime) in line]
    found += [str(file) for file in runtime.glob("sandboxes/*")]
    found += [str(file) for file in runtime.glob("leavings/*")]
    listed = subprocess.run(["pgrep", "-af", f"{runtime}/"], capture_output=True, text=True).stdout
    found += [line for line in listed.splitlines() if "qemu" in line or "virtiofsd" in line]
    return found


def _kill(file: str) -> Callable[[Winpod], object]:
    return lambda winpod: os.kill(_pid(winpod, file), signal.SIGKILL)


def _ask(winpod: Winpod, *words: str) -> str:
    """While no runtime is there, which would have the only connection to the guest."""
    winpod.end_runtime()
    (control,) = (winpod.root / "runtime").glob("sandboxes/*/vm/control")

    async def ask() -> bytes:
        guest = GuestClient(control)
        try:
            return await guest.request(*words)
        finally:
            guest.close()

    return asyncio.run(ask()).decode()


def _panic(winpod: Winpod) -> None:
    with contextlib.suppress(MicroVmGone):
        _ask(winpod, "write", "/proc/sysrq-trigger", "c")


def _seconds_up(winpod: Winpod, name: str) -> float:
    """As the guest's own kernel counts them."""
    return float(winpod("exec", name, "cmd", "/c", r"type \\?\unix\proc\uptime").stdout.split()[0])


def test_a_guest_that_gets_no_time_for_a_while_goes_on_and_its_clock_is_right(
    winpod: Winpod, image: str
) -> None:
    _start(winpod, image, "late")
    before, here = _seconds_up(winpod, "late"), time.monotonic()
    (pid,) = machines(winpod)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(4.5)
    os.kill(pid, signal.SIGCONT)
    passed = time.monotonic() - here
    assert _seconds_up(winpod, "late") - before >= passed - 0.1
    _remove(winpod, "late")


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(_kill("sandboxes/*/vm/qemu.pid"), id="QEMU is killed"),
        pytest.param(_kill("sandboxes/*/vm/drives.pid"), id="the server of its drives is killed"),
        pytest.param(_kill("sandboxes/*/vm/volumes.pid"), id="that of its volumes is killed"),
        pytest.param(_panic, id="its kernel panics"),
    ],
)
def test_a_pod_whose_microvm_fails_has_ended(
    winpod: Winpod, image: str, break_it: Callable[[Winpod], object]
) -> None:
    _start(winpod, image, "fails")
    until_said(winpod, "fails", "up")
    break_it(winpod)
    _until_ended(winpod, "fails")
    assert "the pod's microVM has ended" in winpod("inspect", "fails").stdout
    eventually(lambda: machines(winpod), not_)
    _remove(winpod, "fails")


def test_a_guest_that_stands_still_has_ended_and_who_waits_for_it_is_told(
    winpod: Winpod, image: str
) -> None:
    _start(winpod, image, "still")
    until_said(winpod, "still", "up")
    (told,) = json.loads(winpod("inspect", "still").stdout)
    asked = api.ContainerStatusRequest(container_id=told["status"]["id"])
    spec = call(winpod, asked).status.image
    _stop_processors(winpod)
    with pytest.raises(RemoteError, match="the pod's microVM"):
        begin(winpod, spec, told["sandbox"]["status"]["id"], "second", ["cmd", "/c", "ver"])
    _until_ended(winpod, "still")
    assert "the pod's microVM has ended" in winpod("inspect", "still").stdout
    eventually(lambda: machines(winpod), not_)
    _remove(winpod, "still")


def _stop_processors(winpod: Winpod) -> None:
    (monitor,) = (winpod.root / "runtime").glob("sandboxes/*/vm/qmp")

    async def stop() -> None:
        async with QmpClient(monitor) as qmp:
            await qmp.execute("stop")

    asyncio.run(stop())


def test_a_container_whose_way_out_of_the_guest_is_cut_has_ended(
    winpod: Winpod, image: str
) -> None:
    _start(winpod, image, "cut")
    until_said(winpod, "cut", "up")
    os.kill(_pid(winpod, "containers/*/shell/shell.pid"), signal.SIGKILL)
    _until_ended(winpod, "cut")
    _remove(winpod, "cut")


def test_a_program_that_takes_all_memory_of_the_guest_is_killed_and_told_so(
    winpod: Winpod, image: str
) -> None:
    program = windows_programs.go_program(name="load")
    mounted = ("-v", f"{program}:C:\\load.exe:ro")
    small = ("--annotation", "io.microsoft.virtualmachine.computetopology.memory.sizeinmb=512")
    options = ("-d", "--name", "greedy", *ISOLATED, *small, *mounted)
    began = winpod("run", *options, image, "C:\\load.exe", "4000")
    assert began.returncode == 0, began.stderr
    _until_ended(winpod, "greedy")
    assert "OOMKilled" in winpod("inspect", "greedy").stdout
    _remove(winpod, "greedy")


def test_a_runtime_that_is_killed_while_it_makes_a_microvm_leaves_nothing(
    winpod: Winpod, image: str
) -> None:
    assert winpod("ps").returncode == 0
    for moment in (0.5, 1.0, 2.0):
        begins = winpod.start(
            *("run", "--rm", *ISOLATED, image, "cmd", "/c", "ver"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(moment)
        winpod.end_runtime(signal.SIGKILL)
        begins.wait(300)
        assert winpod("ps").returncode == 0
        for container in winpod("ps", "-aq").stdout.split():
            winpod("rm", "-f", container)
        _nothing_is_left(winpod)


def test_what_a_guest_makes_qemu_say_does_not_fill_the_machine(winpod: Winpod, image: str) -> None:
    program = windows_programs.linux_program("noisy")
    mounted = ("-v", f"{program.parent}:C:\\noisy:ro")
    options = ("-d", "--name", "noisy", *ISOLATED, *mounted)
    began = winpod("run", *options, image, "cmd", "/c", WAITS)
    assert began.returncode == 0, began.stderr
    (volume,) = (winpod.root / "runtime").glob("sandboxes/*/vm/volumes/*/*")
    inside = f"/volumes/{volume.parent.name}/{volume.name}/noisy"
    _ask(winpod, "run", "/run/noise", inside, str(NOISE))
    eventually(lambda: _result(winpod, "/run/noise"), lambda code: code == "0")
    assert _ask(winpod, "read", "/run/noise.said") == f"{NOISE}\n"
    (folder,) = (winpod.root / "runtime").glob("sandboxes/*/vm")
    assert sum(log.stat().st_blocks for log in folder.glob("*.log")) == 0
    assert winpod("exec", "noisy", "cmd", "/c", "echo still here").stdout == "still here\n"
    _remove(winpod, "noisy")


def _result(winpod: Winpod, file: str) -> str:
    try:
        return _ask(winpod, "read", file)
    except GuestError:
        return ""


@pytest.mark.alone
def test_twenty_microvms_at_once_all_run_and_all_go(winpod: Winpod, image: str) -> None:
    names = [f"one-of-many-{number}" for number in range(MANY)]
    waits = windows_programs.go_program(name="signals")
    options = (*ISOLATED, "-v", f"{waits}:C:\\waits.exe:ro")
    begun = [
        winpod.start(
            *("run", "-d", "--name", name, *options, image, "C:\\waits.exe"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    said = [one.communicate(timeout=900)[1].decode() for one in begun]
    assert [one.returncode for one in begun] == [0] * MANY, "".join(said)
    assert len(machines(winpod)) == MANY
    for name in names:
        until_said(winpod, name, "waiting")
    listed = json.loads(winpod("inspect", *names).stdout)
    assert len({one["sandbox"]["status"]["network"]["ip"] for one in listed}) == MANY
    removed = winpod("rm", "-f", *names)
    assert removed.returncode == 0, removed.stderr
    _nothing_is_left(winpod)

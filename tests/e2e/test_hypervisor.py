"""Pods in microVMs, as a newcomer runs them: an older image on a newer host, and what holds."""

import os
import platform
import re
import shutil
import signal
from operator import not_
from pathlib import Path

import pytest
from tests.support.e2e.command_line import Winpod, winpod_in
from tests.support.e2e.microvms import WAITS, image, machines, run, state, until_said, winpod
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import cache, go_program

from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.compute.hypervisor.assets import build_assets
from winpod.images.base.builder import Base

__all__ = ["image", "winpod"]

README = Path(__file__).parents[2] / "README.md"
POWERS = ("CapPrm:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:")


def test_an_older_image_runs_on_a_newer_host_in_a_kernel_of_its_own(
    winpod: Winpod, image: str
) -> None:
    refused = winpod("run", "--rm", image, "cmd", "/c", "ver")
    assert refused.returncode == 125
    assert refused.stderr.replace(image, "oci:images:old") in README.read_text()
    said = run(winpod, image, r"ver & type C:\hello.txt & type \\?\unix\proc\version")
    assert "Microsoft Windows 10.0.17763" in said
    assert "of the image" in said
    assert "Linux version" in said
    assert platform.release() not in said
    eventually(lambda: machines(winpod), not_)


def test_a_guest_has_a_gibibyte_and_two_processors_where_nobody_asks_for_more(
    winpod: Winpod, image: str
) -> None:
    said = run(winpod, image, r"type \\?\unix\proc\meminfo & type \\?\unix\proc\cpuinfo")
    total = int(re.findall(r"MemTotal: +(\d+) kB", said)[0])
    assert 900_000 < total < 1_048_576
    assert said.count("processor\t:") == min(2, len(os.sched_getaffinity(0)))


def test_a_user_in_a_microvm_cannot_write_what_is_the_administrators(
    winpod: Winpod, image: str
) -> None:
    line = (
        r"echo %USERNAME% & echo x>C:\hello.txt & echo mine>C:\Users\ContainerUser\f & dir C:\Users"
    )
    ran = winpod(
        *("run", "--rm", "--isolation", "hypervisor", "--user", "ContainerUser"),
        *(image, "cmd", "/c", line),
    )
    assert "ContainerUser" in ran.stdout
    assert "Access denied" in ran.stdout + ran.stderr


def test_a_program_that_is_not_there_is_a_sentence_and_leaves_nothing(
    winpod: Winpod, image: str
) -> None:
    refused = winpod("run", "--rm", "--isolation", "hypervisor", image, "gone.exe")
    assert refused.returncode == 127
    assert "The system cannot find the file specified." in refused.stderr
    assert machines(winpod) == []
    assert winpod.containers == []
    assert str(winpod.root / "runtime/sandboxes") not in Path("/proc/mounts").read_text()


def test_without_leave_to_emulate_the_reason_is_told_and_who_gives_it_is_heard(
    winpod: Winpod, image: str
) -> None:
    winpod.end_runtime()
    os.environ[ALLOW] = "0"
    try:
        refused = winpod("run", "--rm", "--isolation", "hypervisor", image, "cmd", "/c", "ver")
    finally:
        os.environ[ALLOW] = "1"
    assert refused.returncode == 125
    assert "neither kvm_intel nor kvm_amd" in refused.stderr
    assert "hypervisor.allow_emulation" in refused.stderr
    assert "Microsoft Windows 10.0.17763" in run(winpod, image, "ver")


def test_what_holds_for_any_container_holds_in_a_microvm(
    winpod: Winpod, image: str, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/note.txt").write_text("from outside\r\n")
    (tmp_path / "one.txt").write_text("a single file\r\n")
    line = (
        r"type C:\shared\note.txt & type C:\one.txt & echo x>C:\one.txt & "
        rf"echo from inside>C:\shared\back.txt & {WAITS}"
    )
    mounts = ("-v", f"{tmp_path}/shared:C:\\shared", "-v", f"{tmp_path}/one.txt:C:\\one.txt:ro")
    options = ("-d", "--name", "box", "--hostname", "box", "--isolation", "hypervisor")
    began = winpod("run", *options, *mounts, image, "cmd", "/c", line)
    assert began.returncode == 0, began.stderr
    until_said(winpod, "box", "up")
    said = winpod("logs", "box")
    assert "from outside" in said.stdout
    assert "a single file" in said.stdout
    assert "Access denied" in said.stdout + said.stderr
    assert "from inside" in (tmp_path / "shared/back.txt").read_text()
    (tmp_path / "shared/note.txt").write_text("changed outside\r\n")
    beside = winpod("exec", "box", "cmd", "/c", r"echo %COMPUTERNAME% & type C:\shared\note.txt")
    assert "BOX" in beside.stdout
    assert "changed outside" in beside.stdout
    assert winpod("exec", "box", "cmd", "/c", "exit 42").returncode == 42
    winpod.end_runtime(signal.SIGKILL)
    again = winpod("exec", "box", "cmd", "/c", "echo still here")
    assert "still here" in again.stdout, again.stderr
    assert winpod("stop", "-t", "5", "box").returncode == 0
    assert winpod("rm", "box").returncode == 0
    assert machines(winpod) == []


def test_a_microvm_that_dies_ends_its_container_and_leaves_nothing(
    winpod: Winpod, image: str
) -> None:
    options = ("-d", "--name", "gone", "--isolation", "hypervisor")
    assert winpod("run", *options, image, "cmd", "/c", WAITS).returncode == 0
    until_said(winpod, "gone", "up")
    (sandbox,) = (vm.parent for vm in winpod.root.glob("runtime/sandboxes/*/vm"))
    (pid,) = machines(winpod)
    assert _powers(pid) == {"CapPrm": 0, "CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1, "Seccomp": 2}
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: (state(winpod, "gone"), machines(winpod)),
        lambda seen: seen == ("exited", []),
    )
    assert winpod("rm", "-f", "gone").returncode == 0
    assert machines(winpod) == []
    assert not Path(f"/dev/shm/winpod-{sandbox.name}").exists()


def _powers(pid: int) -> dict[str, int]:
    """What a process may do beyond what anybody may, as the kernel tells it."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1], 16) for line in lines if line[0] in POWERS}


def test_a_guest_of_a_base_with_32bit_runs_32bit_programs(
    base_32bit: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a template of its own, which would take the place of the other tests'."""
    monkeypatch.setenv(ALLOW, "1")
    kit = build_assets(cache() / "root")
    with winpod_in(tmp_path, base_32bit) as winpod:
        (winpod.root / "kits").symlink_to(kit.path.parent)
        content = tmp_path / "content"
        content.mkdir()
        shutil.copy(go_program("386"), content / "narrow.exe")
        image = f"oci:{tmp_path}/images:narrow"
        packed = winpod("image", "pack", str(content), "-t", image, "--os-version", "2022")
        assert packed.returncode == 0, packed.stderr
        ran = winpod("run", "--rm", "--isolation", "hypervisor", image, "C:\\narrow.exe")
        assert "Go on windows/386" in ran.stdout, ran.stderr
        assert ran.returncode == 7

"""`winpod run --isolation hypervisor`: older images on a newer host."""

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
PRIVILEGE_FIELDS = ("CapPrm:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:")


def test_older_image_runs_on_newer_host_with_its_own_kernel(winpod: Winpod, image: str) -> None:
    rejected = winpod("run", "--rm", image, "cmd", "/c", "ver")
    assert rejected.returncode == 125
    assert rejected.stderr.replace(image, "oci:images:old") in README.read_text()
    output = run(winpod, image, r"ver & type C:\hello.txt & type \\?\unix\proc\version")
    assert "Microsoft Windows 10.0.17763" in output
    assert "of the image" in output
    assert "Linux version" in output
    assert platform.release() not in output
    eventually(lambda: machines(winpod), not_)


def test_default_guest_has_1_gib_and_two_processors(winpod: Winpod, image: str) -> None:
    output = run(winpod, image, r"type \\?\unix\proc\meminfo & type \\?\unix\proc\cpuinfo")
    total = int(re.findall(r"MemTotal: +(\d+) kB", output)[0])
    assert 900_000 < total < 1_048_576
    assert output.count("processor\t:") == min(2, len(os.sched_getaffinity(0)))


def test_user_in_microvm_cannot_write_administrator_files(winpod: Winpod, image: str) -> None:
    line = (
        r"echo %USERNAME% & echo x>C:\hello.txt & echo mine>C:\Users\ContainerUser\f & dir C:\Users"
    )
    result = winpod(
        *("run", "--rm", "--isolation", "hypervisor", "--user", "ContainerUser"),
        *(image, "cmd", "/c", line),
    )
    assert "ContainerUser" in result.stdout
    assert "Access denied" in result.stdout + result.stderr


def test_missing_program_is_reported_and_leaves_nothing(winpod: Winpod, image: str) -> None:
    rejected = winpod("run", "--rm", "--isolation", "hypervisor", image, "gone.exe")
    assert rejected.returncode == 127
    assert "The system cannot find the file specified." in rejected.stderr
    assert machines(winpod) == []
    assert winpod.containers == []
    assert str(winpod.root / "runtime/sandboxes") not in Path("/proc/mounts").read_text()


def test_emulation_requires_opt_in(winpod: Winpod, image: str) -> None:
    winpod.end_runtime()
    os.environ[ALLOW] = "0"
    try:
        rejected = winpod("run", "--rm", "--isolation", "hypervisor", image, "cmd", "/c", "ver")
    finally:
        os.environ[ALLOW] = "1"
    assert rejected.returncode == 125
    assert "neither kvm_intel nor kvm_amd" in rejected.stderr
    assert "hypervisor.allow_emulation" in rejected.stderr
    assert "Microsoft Windows 10.0.17763" in run(winpod, image, "ver")


def test_mounts_exec_and_restart_work_in_microvm(
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
    started = winpod("run", *options, *mounts, image, "cmd", "/c", line)
    assert started.returncode == 0, started.stderr
    until_said(winpod, "box", "up")
    logs = winpod("logs", "box")
    assert "from outside" in logs.stdout
    assert "a single file" in logs.stdout
    assert "Access denied" in logs.stdout + logs.stderr
    assert "from inside" in (tmp_path / "shared/back.txt").read_text()
    (tmp_path / "shared/note.txt").write_text("changed outside\r\n")
    result = winpod("exec", "box", "cmd", "/c", r"echo %COMPUTERNAME% & type C:\shared\note.txt")
    assert "BOX" in result.stdout
    assert "changed outside" in result.stdout
    assert winpod("exec", "box", "cmd", "/c", "exit 42").returncode == 42
    winpod.end_runtime(signal.SIGKILL)
    after_kill = winpod("exec", "box", "cmd", "/c", "echo still here")
    assert "still here" in after_kill.stdout, after_kill.stderr
    assert winpod("stop", "-t", "5", "box").returncode == 0
    assert winpod("rm", "box").returncode == 0
    assert machines(winpod) == []


def test_container_exits_when_its_microvm_dies(winpod: Winpod, image: str) -> None:
    options = ("-d", "--name", "gone", "--isolation", "hypervisor")
    assert winpod("run", *options, image, "cmd", "/c", WAITS).returncode == 0
    until_said(winpod, "gone", "up")
    (sandbox,) = (vm.parent for vm in winpod.root.glob("runtime/sandboxes/*/vm"))
    (pid,) = machines(winpod)
    assert _privileges(pid) == {
        "CapPrm": 0,
        "CapEff": 0,
        "CapBnd": 0,
        "NoNewPrivs": 1,
        "Seccomp": 2,
    }
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: (state(winpod, "gone"), machines(winpod)),
        lambda found: found == ("exited", []),
    )
    assert winpod("rm", "-f", "gone").returncode == 0
    assert machines(winpod) == []
    assert not Path(f"/dev/shm/winpod-{sandbox.name}").exists()


def _privileges(pid: int) -> dict[str, int]:
    """Return the capabilities, no_new_privs and seccomp mode of a process."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1], 16) for line in lines if line[0] in PRIVILEGE_FIELDS}


def test_guest_of_32bit_base_runs_32bit_programs(
    base_32bit: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses its own templates, because its template would replace that of other tests."""
    monkeypatch.setenv(ALLOW, "1")
    assets = build_assets(cache() / "root")
    with winpod_in(tmp_path, base_32bit) as winpod:
        (winpod.root / "kits").symlink_to(assets.path.parent)
        content = tmp_path / "content"
        content.mkdir()
        shutil.copy(go_program("386"), content / "narrow.exe")
        image = f"oci:{tmp_path}/images:narrow"
        packed = winpod("image", "pack", str(content), "-t", image, "--os-version", "2022")
        assert packed.returncode == 0, packed.stderr
        result = winpod("run", "--rm", "--isolation", "hypervisor", image, "C:\\narrow.exe")
        assert "Go on windows/386" in result.stdout, result.stderr
        assert result.returncode == 7

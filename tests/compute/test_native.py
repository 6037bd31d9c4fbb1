"""The native programs in the built wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = ("stub.exe", "tar.exe", "wagent.exe", "winit", "wproxy")


def test_wheel_tag_matches_its_native_programs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stem.endswith("-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64")
    with zipfile.ZipFile(wheel) as archive:
        assert b"Root-Is-Purelib: false" in archive.read(
            next(name for name in archive.namelist() if name.endswith("dist-info/WHEEL"))
        )
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--target", str(tmp_path / "installed"), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    programs = tmp_path / "installed/winpod/native"
    assert all(os.access(programs / name, os.R_OK | os.X_OK) for name in PROGRAMS)
    assert subprocess.run([programs / "wproxy"], capture_output=True, check=False).returncode == 2


def test_linux_programs_are_statically_linked() -> None:
    for name in ("winit", "wproxy"):
        program = (REPOSITORY / "src/winpod/native" / name).read_bytes()
        assert program.startswith(b"\x7fELF\x02\x01")
        assert b"/ld-" not in program

"""Checks of this host, and of hosts that lack something."""

import subprocess
import sys
from pathlib import Path

import pytest

from winpod.compute.errors import Unsupported
from winpod.compute.preflight import (
    Level,
    check_architecture,
    check_controllers,
    check_kernel,
    check_oci_runtime,
    check_programs,
    check_seccomp,
    has_user_namespaces,
    require_supported,
    run_checks,
)

ALL = dict.fromkeys(("memory", "pids", "cpu", "io"), True)


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("5.10.0-33-amd64", Level.FAILED),
        ("5.14.21-150500.55-default", Level.FAILED),
        ("4.18.0-553.el8_10.x86_64", Level.FAILED),
        ("5.15.0-91-generic", Level.OK),
        ("5.15", Level.OK),
        ("6.1.0-50-amd64", Level.OK),
        ("6.12.48+deb13-amd64", Level.OK),
        ("10.0.1", Level.OK),
        ("unknown", Level.FAILED),
    ],
)
def test_kernels_from_5_15_on_are_supported(release: str, level: Level) -> None:
    check = check_kernel(release)
    assert check.level is level
    assert release in check.found


def test_another_architecture_is_refused() -> None:
    assert check_architecture("aarch64").level is Level.FAILED


@pytest.mark.parametrize(
    ("missing", "level"),
    [
        ((), Level.OK),
        (("io",), Level.DEGRADED),
        (("memory",), Level.FAILED),
        (("pids", "cpu"), Level.FAILED),
    ],
)
def test_missing_controllers_are_named(missing: tuple[str, ...], level: Level) -> None:
    check = check_controllers(ALL | dict.fromkeys(missing, False))
    assert check.level is level
    assert all(name in check.found for name in missing)


def test_missing_programs_and_runtimes_are_named(tmp_path: Path) -> None:
    check = check_programs({"sh": "dash", "no-such-program": "its-package"})
    assert check.level is Level.FAILED
    assert "no-such-program" in check.found
    assert "its-package" in check.remedy
    assert check_oci_runtime("no-such-runtime").level is Level.FAILED
    assert check_oci_runtime("").level is Level.OK
    assert check_seccomp(tmp_path / "missing").level is Level.FAILED


def test_checks_pass_on_this_host_and_leave_nothing_behind(tmp_path: Path) -> None:
    root = tmp_path / "not/made/yet"
    failed = [check for check in run_checks(root) if check.level is Level.FAILED]
    assert failed == []
    require_supported(root)
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not list(Path("/sys/fs/cgroup").glob("**/preflight-*"))


def test_owners_cannot_be_mapped_on_every_filesystem(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "ramfs", "ramfs", tmp_path], check=True)
    try:
        assert not has_user_namespaces(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_missing_permission_to_mount_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """As in a container without privileges."""
    script = f"""
from pathlib import Path
from winpod.compute.preflight import require_supported
require_supported(Path({str(tmp_path)!r}))
"""
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable]
    done = subprocess.run([*command, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert Unsupported.__name__ in last
    assert "overlayfs: Operation not permitted, EPERM" in last
    assert "it needs privileges to mount. See winpod doctor." in last

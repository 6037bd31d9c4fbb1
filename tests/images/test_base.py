"""What is kept of a base, what is switched off, and what is said when it cannot be had.

Builds are real in tests/e2e; here their parts work on trees of a few files.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.images.windows_files import program
from winpod.images import base as bases
from winpod.images import base_container, base_packages, base_prefix, base_slim
from winpod.images.base import (
    Base,
    build_base,
    find_base,
    list_bases,
    prepare_prefix,
    refuse_foreign_program,
    remove_base,
)
from winpod.images.base_container import Result, container_spec, dying_with_us, require_tools
from winpod.images.base_errors import BaseFailed, CannotRun, ToolMissing
from winpod.images.base_recipe import (
    ABSENT,
    SERVICES_OFF,
    UNUSED_MODULES,
    WINE,
    ZLIB,
    absent_sentence,
    recipe_digest,
)
from winpod.images.pe import Machine
from winpod.images.wine_registry import Value, WineRegistry
from winpod.windows.builds import parse_build
from winpod.windows.errors import NotFound, PermissionDenied

REGISTRY = "WINE REGISTRY Version 2\n;; All keys relative to {root}\n\n#arch=win64\n\n"
SERVICE = '[System\\\\CurrentControlSet\\\\Services\\\\{name}] 1\n"Start"=dword:00000002\n\n'
DEVICE = '[System\\\\CurrentControlSet\\\\Enum\\\\ROOT\\\\WINE\\\\WINEBUS] 1\n"Service"="winebus"\n'


def write(path: Path, content: str | bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def make_prefix(prefix: Path) -> Path:
    """The parts of a prefix as Wine leaves it."""
    services = "".join(SERVICE.format(name=name) for name in ("PlugPlay", "RpcSs"))
    write(prefix / "system.reg", REGISTRY.format(root="Machine") + services + DEVICE)
    write(prefix / "user.reg", REGISTRY.format(root="User"))
    write(prefix / "userdef.reg", REGISTRY.format(root="User\\\\.Default"))
    (prefix / "dosdevices").mkdir()
    (prefix / "dosdevices/c:").symlink_to("../drive_c")
    (prefix / "dosdevices/z:").symlink_to("/")
    write(prefix / "wineserver", "wine-abc")
    write(prefix / "drive_c/windows/system32/cmd.exe", program({".text": b"cmd"}))
    return prefix


def make_tree(rootfs: Path) -> Path:
    """The parts of a Debian tree that a build touches."""
    windows = rootfs / WINE / "x86_64-windows"
    debugging = {".text": b"cmd", ".debug_info": b"x" * 9000}
    write(windows / "cmd.exe", program(debugging))
    write(windows / "kernel32.dll", program(debugging))
    write(windows / "setx.exe", program())
    (rootfs / WINE / "i386-windows").mkdir()
    for name in (*UNUSED_MODULES, "ntdll.so"):
        write(rootfs / WINE / "x86_64-unix" / name)
    write(rootfs / "usr/lib/wine/wineserver", "#!/bin/sh\n")
    write(rootfs / "usr/lib/wine/wineserver64")
    write(rootfs / "usr/lib/x86_64-linux-gnu/libneeded.so.1.2")
    (rootfs / "usr/lib/x86_64-linux-gnu/libneeded.so.1").symlink_to("libneeded.so.1.2")
    write(rootfs / "usr/lib/x86_64-linux-gnu/libidle.so.1")
    write(rootfs / base_slim.LOADER)
    write(rootfs / "usr/bin/dash")
    (rootfs / base_slim.SHELL).symlink_to("dash")
    write(rootfs / "usr/bin/perl")
    write(rootfs / "usr/share/doc/wine/copyright", "LGPL")
    write(rootfs / "usr/share/doc/wine/changelog")
    write(rootfs / "usr/share/ca-certificates/mozilla/a.crt", "one\n")
    write(rootfs / "usr/share/ca-certificates/mozilla/b.crt", "two\n")
    write(rootfs / "etc/apt/sources.list")
    write(rootfs / "dev/null")
    (rootfs / "dev/pts").mkdir()
    for library in ZLIB.values():
        write(rootfs / library, program())
    write(rootfs / "var/cache/apt/archives/wine64_10.0_amd64.deb")
    return rootfs


def files_of(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def save(root: Path, name: str = "aaa111", **changes: Any) -> Path:
    record = {
        "built": "2026-01-02T03:04:05+00:00",
        "recipe": "r",
        "with32Bit": False,
        "size": 1000,
        "packages": {"wine64": "10.0~repack-6"},
        "absent": ["setx"],
        "sources": ["deb x"],
        **changes,
    }
    write(root / "bases" / name / "base.json", json.dumps(record))
    return root / "bases" / name


# What is in the recipe


def test_a_recipe_is_known_by_everything_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"tar.exe": b"program"}
    one = recipe_digest(programs, with_32bit=False)
    assert recipe_digest(programs, with_32bit=False) == one
    others = {
        recipe_digest(programs, with_32bit=True),
        recipe_digest({"tar.exe": b"p"}, with_32bit=False),
    }
    monkeypatch.setattr("winpod.images.base_recipe.SERVICES_OFF", ())
    others.add(recipe_digest(programs, with_32bit=False))
    assert len(others | {one}) == 4


@pytest.mark.parametrize("name", ABSENT)
def test_every_absent_program_has_a_sentence_that_fits(name: str) -> None:
    program = base_prefix.with_sentence(base_prefix.absent_program(), absent_sentence(name))
    assert absent_sentence(name).encode() in program
    assert len(program) == len(base_prefix.absent_program())
    assert name == name.lower()


@pytest.mark.parametrize(
    ("program", "sentence"), [(b"no mark", "text"), (base_prefix.absent_program(), "x" * 600)]
)
def test_a_sentence_without_room_is_refused(program: bytes, sentence: str) -> None:
    with pytest.raises(BaseFailed, match="no place for its sentence"):
        base_prefix.with_sentence(program, sentence)


def test_a_winpod_without_its_windows_programs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_prefix, "files", lambda _: tmp_path)
    with pytest.raises(BaseFailed, match=r"python native/build\.py"):
        base_prefix.windows_programs()


# The container in which Wine makes its prefix


def test_nothing_of_wine_runs_without_limits(tmp_path: Path) -> None:
    spec = container_spec(tmp_path, tmp_path, ["wine64"], "name", {"A": "b"})
    limits = spec["linux"]["resources"]
    assert limits["pids"]["limit"] > 0
    assert 0 < limits["memory"]["limit"] == limits["memory"]["swap"]
    kinds = {one["type"] for one in spec["linux"]["namespaces"]}
    assert kinds == {"pid", "network", "ipc", "uts", "mount"}
    assert not any(spec["process"]["capabilities"].values())
    assert spec["process"]["noNewPrivileges"]
    assert spec["root"]["readonly"]


def test_a_command_dies_with_whoever_started_it() -> None:
    command = dying_with_us(["mmdebstrap", "trixie"])
    assert command[:3] == ["setpriv", "--pdeathsig", "KILL"]
    assert "--kill-child=KILL" in command
    assert command[-2:] == ["mmdebstrap", "trixie"]


def test_missing_tools_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match="apt-get install mmdebstrap runc"):
        require_tools({"mmdebstrap": "mmdebstrap", "runc": "runc"})


def test_control_groups_of_a_killed_runtime_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cgroup/memory/winpod-base-x1").mkdir(parents=True)
    (tmp_path / "cgroup/winpod-base-x1").mkdir()
    (tmp_path / "cgroup/winpod-base-other").mkdir()
    (tmp_path / "container-x1/state").mkdir(parents=True)
    base_container.remove_bundle(tmp_path / "container-x1", tmp_path / "cgroup")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"cgroup", "cgroup/memory", "cgroup/winpod-base-other"}


# The steps of a build


def test_a_tree_is_completed_and_slimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rootfs = make_tree(tmp_path / "rootfs")
    said = "\tlibneeded.so.1 => /lib/x86_64-linux-gnu/libneeded.so.1 (0x00007f)\n"
    monkeypatch.setattr(base_slim, "LOADED_LIBRARIES", ())
    monkeypatch.setattr(base_slim, "run_contained", lambda *_, **__: Result(0, said))
    base_slim.complete_tree(rootfs)
    base_slim.keep_only_needed(rootfs, tmp_path, tmp_path)
    assert files_of(rootfs) == {
        "bin",
        "lib",
        "lib64",
        "sbin",
        "etc/group",
        "etc/hosts",
        "etc/nsswitch.conf",
        "etc/passwd",
        "etc/resolv.conf",
        "etc/ssl/certs/ca-certificates.crt",
        "usr/bin/dash",
        "usr/bin/sh",
        "usr/lib/wine/wineserver",
        "usr/lib/wine/wineserver64",
        "usr/lib/x86_64-linux-gnu/libneeded.so.1",
        "usr/lib/x86_64-linux-gnu/libneeded.so.1.2",
        f"{WINE}/x86_64-unix/ntdll.so",
        f"{WINE}/x86_64-windows/cmd.exe",
        f"{WINE}/x86_64-windows/kernel32.dll",
        f"{WINE}/x86_64-windows/setx.exe",
        f"{WINE}/x86_64-windows/zlib1.dll",
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/share/doc/wine/copyright",
    }
    certificates = rootfs / "etc/ssl/certs/ca-certificates.crt"
    assert certificates.read_text() == "one\ntwo\n"


def test_libraries_that_cannot_be_told_end_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rootfs = make_tree(tmp_path / "rootfs")
    failed = Result(127, "error while loading shared libraries")
    monkeypatch.setattr(base_slim, "run_contained", lambda *_, **__: failed)
    with pytest.raises(BaseFailed, match="error while loading"):
        base_slim.keep_only_needed(rootfs, tmp_path, tmp_path)


def test_windows_files_lose_debugging_data_and_are_on_the_disk_once(tmp_path: Path) -> None:
    rootfs, prefix = make_tree(tmp_path / "rootfs"), make_prefix(tmp_path / "prefix")
    base_slim.strip_windows_files(rootfs)
    own = rootfs / WINE / "x86_64-windows/cmd.exe"
    copy = prefix / "drive_c/windows/system32/cmd.exe"
    other = write(prefix / "drive_c/app/kernel32.dll", "another")
    copy.write_bytes(own.read_bytes())
    assert b".debug" not in own.read_bytes()
    before = base_slim.disk_usage(rootfs, prefix)
    base_slim.share_windows_files(rootfs, prefix / "drive_c")
    assert own.samefile(copy)
    assert other.read_text() == "another"
    assert base_slim.disk_usage(rootfs, prefix) < before


def test_a_prefix_is_settled(tmp_path: Path) -> None:
    prefix = make_prefix(tmp_path)
    hosts = prefix / "drive_c/windows/system32/drivers/etc/hosts"
    write(hosts, "# 127.0.0.1 localhost")
    base_prefix.settle_prefix(prefix)
    assert hosts.read_text().splitlines()[0] == "127.0.0.1 localhost"
    registry = WineRegistry.read(prefix)
    services = r"System\CurrentControlSet\Services"
    assert registry.system.value(rf"{services}\PlugPlay", "Start") == Value.dword(4)
    assert registry.system.value(rf"{services}\RpcSs", "Start") == Value.dword(2)
    assert not registry.system.has_key(rf"{services}\{SERVICES_OFF[0]}")
    devices = r"System\CurrentControlSet\Enum\ROOT"
    assert not registry.system.has_key(rf"{devices}\WINE")
    assert registry.system.has_key(devices)
    for user in (registry.user, registry.default_user):
        assert user.value(r"Software\Wine\Drivers", "Graphics") == Value.text("null")
    debugger = r"Software\Microsoft\Windows NT\CurrentVersion\AeDebug"
    assert registry.system.value(debugger, "Debugger") == Value.text("")
    assert [drive.name for drive in (prefix / "dosdevices").iterdir()] == ["c:"]
    assert (prefix / ".update-timestamp").read_text() == "disable\n"
    assert not (prefix / "wineserver").exists()


def test_programs_that_pretend_are_replaced_wherever_they_are(tmp_path: Path) -> None:
    rootfs, drive = make_tree(tmp_path / "rootfs"), tmp_path / "drive_c"
    system = drive / "windows/system32"
    write(system / "setx.exe", "pretends")
    os.link(system / "setx.exe", tmp_path / "linked")
    write(system / "WindowsPowerShell/v1.0/PowerShell.exe", "pretends")
    write(system / "cmd.exe", "works")
    assert base_prefix.replace_absent(rootfs, drive) == ["powershell", "setx"]
    assert b"setx is not in this base" in (system / "setx.exe").read_bytes()
    assert (system / "cmd.exe").read_text() == "works"
    assert (tmp_path / "linked").read_text() == "pretends"
    assert not (rootfs / WINE / "x86_64-windows/setx.exe").exists()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Result(1, "wine: something"), "ended with 1. wine: something"),
        (Result(-1, "", timed_out=True), "took longer than"),
        (Result(0, ""), "ended with 0"),
    ],
)
def test_a_wine_that_makes_no_prefix_ends_a_build(
    result: Result, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rootfs = make_tree(tmp_path / "rootfs")
    monkeypatch.setattr(base_prefix, "run_contained", lambda *_, **__: result)
    with pytest.raises(BaseFailed, match=said):
        base_prefix.make_prefix(rootfs, tmp_path / "prefix", tmp_path)


# A whole build, of stand-ins for what needs root and a network


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Stands in for mmdebstrap and Wine, and counts builds."""
    count = {"builds": 0}

    def unpack(target: Path, *_: Any, **__: Any) -> dict[str, str]:
        count["builds"] += 1
        make_tree(target)
        return {"wine64": "10.0"}

    def boot(_: Path, prefix: Path, *__: Any) -> None:
        make_prefix(prefix)

    monkeypatch.setattr(bases, "require_tools", lambda _: None)
    monkeypatch.setattr(bases, "_flush", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(bases, "unpack_packages", unpack)
    monkeypatch.setattr(base_slim, "LOADED_LIBRARIES", ())
    monkeypatch.setattr(base_slim, "run_contained", lambda *_, **__: Result(0, ""))
    monkeypatch.setattr(base_prefix, "make_prefix", boot)
    return count


def test_a_build_ends_with_a_whole_base(tmp_path: Path, parts: dict[str, int]) -> None:
    steps: list[bases.Step] = []
    built = build_base(tmp_path, progress=steps.append)
    assert tuple(steps) == bases.STEPS
    assert find_base(tmp_path) == built
    assert built.is_current
    assert built.wine == "10.0"
    assert built.size == base_slim.disk_usage(built.rootfs, built.prefix)
    assert build_base(tmp_path) == built
    assert parts["builds"] == 1


def test_a_refreshed_base_of_the_same_packages_is_the_same(
    tmp_path: Path, parts: dict[str, int]
) -> None:
    built = build_base(tmp_path)
    assert build_base(tmp_path, refresh=True) == built
    assert [path.name for path in (tmp_path / "bases").iterdir() if path.is_dir()] == [built.id]
    assert parts["builds"] == 2


def test_a_base_with_32bit_is_another(tmp_path: Path, parts: dict[str, int]) -> None:
    plain, both = build_base(tmp_path), build_base(tmp_path, with_32bit=True)
    assert plain.id != both.id
    assert both.with_32bit
    assert parts["builds"] == 2


@pytest.mark.parametrize("step", bases.STEPS, ids=lambda step: step.name)
@pytest.mark.usefixtures("parts")
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, step: bases.Step) -> None:
    def fail(reached: bases.Step) -> None:
        if reached == step:
            raise BaseFailed("It failed.")

    with pytest.raises(BaseFailed):
        build_base(tmp_path, progress=fail)
    assert [path.name for path in (tmp_path / "bases").iterdir()] == [".lock"]


@pytest.mark.usefixtures("parts")
def test_a_build_sweeps_what_others_left(tmp_path: Path) -> None:
    write(tmp_path / "bases/.building-x/rootfs/file")
    write(tmp_path / "bases/.removing-y/rootfs/file")
    built = build_base(tmp_path)
    names = {path.name for path in (tmp_path / "bases").iterdir()}
    assert names == {".lock", built.id}


def test_only_root_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(PermissionDenied, match="Use sudo"):
        build_base(tmp_path)


def test_another_machine_cannot_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(BaseFailed, match="this machine is aarch64"):
        build_base(tmp_path)


# Bases that are there


def test_the_newest_base_is_the_one_that_containers_get(tmp_path: Path) -> None:
    assert find_base(tmp_path) is None
    save(tmp_path, "old", built="2026-01-01T00:00:00+00:00")
    save(tmp_path, "new", built="2026-02-01T00:00:00+00:00")
    write(tmp_path / "bases/broken/base.json", "{")
    (tmp_path / "bases/empty").mkdir()
    write(tmp_path / "bases/.building-x/base.json", "{}")
    assert [base.id for base in list_bases(tmp_path)] == ["new", "old"]
    found = find_base(tmp_path)
    assert found is not None
    assert found.id == "new"
    assert not found.is_current


def test_a_base_is_removed_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    for name in ("abc1", "abd2", "xyz3"):
        save(tmp_path, name)
    with pytest.raises(NotFound, match="more than one"):
        remove_base(tmp_path, "ab")
    with pytest.raises(NotFound, match="no base"):
        remove_base(tmp_path, "q")
    assert [base.id for base in remove_base(tmp_path, "abc")] == ["abc1"]
    assert len(remove_base(tmp_path)) == 2
    assert list_bases(tmp_path) == []


def read(path: Path) -> Base:
    base = list_bases(path.parent.parent)[0]
    assert base.path == path
    return base


def test_a_prefix_for_a_build_is_files_and_no_drive(tmp_path: Path) -> None:
    base = read(save(tmp_path))
    make_prefix(base.prefix)
    target = tmp_path / "container"
    written = prepare_prefix(base, parse_build("10.0.17763.805"), [], target)
    assert {path.name for path in written} == {
        "system.reg",
        "user.reg",
        "userdef.reg",
        ".update-timestamp",
    }
    assert list((target / "drive_c").iterdir()) == []
    assert str((target / "dosdevices/c:").readlink()) == "../drive_c"
    key = r"Software\Microsoft\Windows NT\CurrentVersion"
    system = WineRegistry.read(target).system
    assert system.value(key, "CurrentBuildNumber") == Value.text("17763")
    assert system.value(key, "UBR") == Value.dword(805)


@pytest.mark.parametrize(
    ("machine", "with_32bit", "refused"),
    [
        (Machine.AMD64, False, ""),
        (Machine.AMD64, True, ""),
        (Machine.I386, True, ""),
        (Machine.I386, False, "winpod base build --with-32bit"),
        (Machine.ARM64, True, "for ARM64"),
        (0x1234, False, "machine 0x1234"),
    ],
)
def test_a_program_for_another_machine_is_refused(
    machine: int, with_32bit: bool, refused: str, tmp_path: Path
) -> None:
    base = read(save(tmp_path, with32Bit=with_32bit))
    file = write(tmp_path / "app.exe", program(machine=machine))
    if not refused:
        refuse_foreign_program(base, file)
        return
    with pytest.raises(CannotRun, match=refused):
        refuse_foreign_program(base, file)


def test_a_program_for_net_framework_is_refused(tmp_path: Path) -> None:
    base = read(save(tmp_path))
    file = write(tmp_path / "app.exe", program(managed=True))
    with pytest.raises(CannotRun, match=r"web\.exe is a program for \.NET Framework"):
        refuse_foreign_program(base, file, "web.exe")


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    base = read(save(tmp_path))
    with pytest.raises(CannotRun, match="not a Windows program"):
        refuse_foreign_program(base, write(tmp_path / "script.sh", "#!/bin/sh\n"))


def test_versions_of_packages_are_read_from_their_files(tmp_path: Path) -> None:
    names = ("wine64_10.0~repack-6_amd64.deb", "libwine_1%3a2_i386.deb")
    found = [base_packages._name_and_version(tmp_path / name) for name in names]
    assert found == [("wine64", "10.0~repack-6"), ("libwine:i386", "1:2")]

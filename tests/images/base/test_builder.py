"""Steps and errors of a base build, on trees of a few files. tests/e2e builds real bases."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.base_records import save, write
from tests.support.windows_files import program
from winpod.errors import NotFound, PermissionDenied
from winpod.files import tree_usage
from winpod.images.base import build_container, builder, rootfs_builder
from winpod.images.base import builder as bases
from winpod.images.base.build_container import (
    BuildCommandResult,
    build_container_spec,
    require_tools,
    with_parent_death_signal,
)
from winpod.images.base.builder import (
    Base,
    build_base,
    latest_base,
    list_bases,
    prepare_prefix,
    refuse_unsupported_program,
    remove_base,
)
from winpod.images.base.recipe import (
    DISABLED_SERVICES,
    STUB_PROGRAMS,
    UNUSED_MODULES,
    WINE,
    ZLIB,
    recipe_digest,
    stub_message,
)
from winpod.images.errors import BaseBuildFailed, ToolMissing, UnsupportedProgram
from winpod.images.pe import PeMachine
from winpod.images.winreg.wine_registry import RegistryValue, WineRegistry
from winpod.windows.builds import parse_build

REGISTRY = "WINE REGISTRY Version 2\n;; All keys relative to {root}\n\n#arch=win64\n\n"
SERVICE = '[System\\\\CurrentControlSet\\\\Services\\\\{name}] 1\n"Start"=dword:00000002\n\n'
DEVICE = '[System\\\\CurrentControlSet\\\\Enum\\\\ROOT\\\\WINE\\\\WINEBUS] 1\n"Service"="winebus"\n'


def make_prefix(prefix: Path) -> Path:
    """Create the parts of a prefix that Wine creates."""
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
    """Create the parts of a Debian tree that a build uses."""
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
    write(rootfs / rootfs_builder.LOADER)
    write(rootfs / "usr/bin/dash")
    (rootfs / rootfs_builder.SHELL).symlink_to("dash")
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


def test_recipe_digest_covers_tables_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"tar.exe": b"program"}
    one = recipe_digest(programs, with_32bit=False)
    assert recipe_digest(programs, with_32bit=False) == one
    others = {
        recipe_digest(programs, with_32bit=True),
        recipe_digest({"tar.exe": b"p"}, with_32bit=False),
    }
    monkeypatch.setattr("winpod.images.base.recipe.DISABLED_SERVICES", ())
    others.add(recipe_digest(programs, with_32bit=False))
    assert len(others | {one}) == 4


@pytest.mark.parametrize("name", STUB_PROGRAMS)
def test_message_of_every_stub_program_fits(name: str) -> None:
    program = builder.with_stub_message(builder.stub_program(), stub_message(name))
    assert stub_message(name).encode() in program
    assert len(program) == len(builder.stub_program())
    assert name == name.lower()


@pytest.mark.parametrize(
    ("program", "sentence"), [(b"no mark", "text"), (builder.stub_program(), "x" * 600)]
)
def test_stub_message_without_placeholder_or_too_long_is_rejected(
    program: bytes, sentence: str
) -> None:
    with pytest.raises(BaseBuildFailed, match="no placeholder for its message"):
        builder.with_stub_message(program, sentence)


def test_missing_native_programs_error_names_the_build_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "files", lambda _: tmp_path)
    with pytest.raises(BaseBuildFailed, match=r"python native/build\.py"):
        builder.own_windows_programs()


def test_build_container_has_limits_and_no_capabilities(tmp_path: Path) -> None:
    spec = build_container_spec(tmp_path, tmp_path, ["wine64"], "name", {"A": "b"})
    limits = spec["linux"]["resources"]
    assert limits["pids"]["limit"] > 0
    assert 0 < limits["memory"]["limit"] == limits["memory"]["swap"]
    kinds = {one["type"] for one in spec["linux"]["namespaces"]}
    assert kinds == {"pid", "network", "ipc", "uts", "mount"}
    assert not any(spec["process"]["capabilities"].values())
    assert spec["process"]["noNewPrivileges"]
    assert spec["root"]["readonly"]


def test_command_is_killed_with_its_parent() -> None:
    command = with_parent_death_signal(["mmdebstrap", "trixie"])
    assert command[:3] == ["setpriv", "--pdeathsig", "KILL"]
    assert "--kill-child=KILL" in command
    assert command[-2:] == ["mmdebstrap", "trixie"]


def test_missing_tools_error_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match="apt-get install mmdebstrap runc"):
        require_tools({"mmdebstrap": "mmdebstrap", "runc": "runc"})


def test_cgroups_of_a_killed_runtime_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cgroup/memory/winpod-base-x1").mkdir(parents=True)
    (tmp_path / "cgroup/winpod-base-x1").mkdir()
    (tmp_path / "cgroup/winpod-base-other").mkdir()
    (tmp_path / "container-x1/state").mkdir(parents=True)
    build_container.remove_bundle(tmp_path / "container-x1", tmp_path / "cgroup")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"cgroup", "cgroup/memory", "cgroup/winpod-base-other"}


def test_rootfs_is_completed_and_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rootfs = make_tree(tmp_path / "rootfs")
    said = "\tlibneeded.so.1 => /lib/x86_64-linux-gnu/libneeded.so.1 (0x00007f)\n"
    monkeypatch.setattr(rootfs_builder, "LOADED_LIBRARIES", ())
    monkeypatch.setattr(
        rootfs_builder, "run_in_container", lambda *_, **__: BuildCommandResult(0, said)
    )
    rootfs_builder.complete_tree(rootfs)
    rootfs_builder.keep_only_needed(rootfs, tmp_path, tmp_path)
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


def test_failure_to_list_libraries_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rootfs = make_tree(tmp_path / "rootfs")
    failed = BuildCommandResult(127, "error while loading shared libraries")
    monkeypatch.setattr(rootfs_builder, "run_in_container", lambda *_, **__: failed)
    with pytest.raises(BaseBuildFailed, match="error while loading"):
        rootfs_builder.keep_only_needed(rootfs, tmp_path, tmp_path)


def test_windows_files_are_stripped_and_hard_linked(tmp_path: Path) -> None:
    rootfs, prefix = make_tree(tmp_path / "rootfs"), make_prefix(tmp_path / "prefix")
    rootfs_builder.strip_windows_files(rootfs)
    own = rootfs / WINE / "x86_64-windows/cmd.exe"
    copy = prefix / "drive_c/windows/system32/cmd.exe"
    other = write(prefix / "drive_c/app/kernel32.dll", "another")
    copy.write_bytes(own.read_bytes())
    assert b".debug" not in own.read_bytes()
    before = tree_usage(rootfs, prefix).bytes
    rootfs_builder.share_windows_files(rootfs, prefix / "drive_c")
    assert own.samefile(copy)
    assert other.read_text() == "another"
    assert tree_usage(rootfs, prefix).bytes < before


def test_prefix_is_finalized(tmp_path: Path) -> None:
    prefix = make_prefix(tmp_path)
    hosts = prefix / "drive_c/windows/system32/drivers/etc/hosts"
    write(hosts, "# 127.0.0.1 localhost")
    builder.finalize_prefix(prefix)
    assert hosts.read_text().splitlines()[0] == "127.0.0.1 localhost"
    registry = WineRegistry.read(prefix)
    services = r"System\CurrentControlSet\Services"
    assert registry.system.value(rf"{services}\PlugPlay", "Start") == RegistryValue.dword(4)
    assert registry.system.value(rf"{services}\RpcSs", "Start") == RegistryValue.dword(2)
    assert not registry.system.has_key(rf"{services}\{DISABLED_SERVICES[0]}")
    devices = r"System\CurrentControlSet\Enum\ROOT"
    assert not registry.system.has_key(rf"{devices}\WINE")
    assert registry.system.has_key(devices)
    for user in (registry.user, registry.default_user):
        assert user.value(r"Software\Wine\Drivers", "Graphics") == RegistryValue.text("null")
    debugger = r"Software\Microsoft\Windows NT\CurrentVersion\AeDebug"
    assert registry.system.value(debugger, "Debugger") == RegistryValue.text("")
    assert [drive.name for drive in (prefix / "dosdevices").iterdir()] == ["c:"]
    assert (prefix / ".update-timestamp").read_text() == "disable\n"
    assert not (prefix / "wineserver").exists()


def test_stub_programs_are_replaced_in_all_directories(tmp_path: Path) -> None:
    rootfs, drive = make_tree(tmp_path / "rootfs"), tmp_path / "drive_c"
    system = drive / "windows/system32"
    write(system / "setx.exe", "pretends")
    os.link(system / "setx.exe", tmp_path / "linked")
    write(system / "WindowsPowerShell/v1.0/PowerShell.exe", "pretends")
    write(system / "cmd.exe", "works")
    assert builder.install_stubs(rootfs, drive) == ["powershell", "setx"]
    assert b"setx is not in this base" in (system / "setx.exe").read_bytes()
    assert (system / "cmd.exe").read_text() == "works"
    assert (tmp_path / "linked").read_text() == "pretends"
    assert not (rootfs / WINE / "x86_64-windows/setx.exe").exists()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (BuildCommandResult(1, "wine: something"), "exited with code 1. wine: something"),
        (BuildCommandResult(-1, "", timed_out=True), "timed out after"),
        (BuildCommandResult(0, ""), "exited with code 0"),
    ],
)
def test_failure_of_wine_to_create_a_prefix_fails_the_build(
    result: BuildCommandResult, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rootfs = make_tree(tmp_path / "rootfs")
    monkeypatch.setattr(builder, "run_in_container", lambda *_, **__: result)
    with pytest.raises(BaseBuildFailed, match=said):
        builder.make_prefix(rootfs, tmp_path / "prefix", tmp_path)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Replace mmdebstrap and Wine by fakes, and count builds."""
    count = {"builds": 0}

    def unpack(target: Path, *_: Any, **__: Any) -> dict[str, str]:
        count["builds"] += 1
        make_tree(target)
        return {"wine64": "10.0"}

    def boot(_: Path, prefix: Path, *__: Any) -> None:
        make_prefix(prefix)

    monkeypatch.setattr(bases, "require_tools", lambda _: None)
    monkeypatch.setattr("winpod.artifacts.sync_filesystem", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(bases, "unpack_packages", unpack)
    monkeypatch.setattr(rootfs_builder, "LOADED_LIBRARIES", ())
    monkeypatch.setattr(
        rootfs_builder, "run_in_container", lambda *_, **__: BuildCommandResult(0, "")
    )
    monkeypatch.setattr(builder, "make_prefix", boot)
    return count


def test_build_creates_a_complete_base(tmp_path: Path, parts: dict[str, int]) -> None:
    steps: list[bases.BuildStep] = []
    built = build_base(tmp_path, progress=steps.append)
    assert tuple(steps) == bases.STEPS
    assert latest_base(tmp_path) == built
    assert built.is_current
    assert built.wine == "10.0"
    assert built.size == tree_usage(built.rootfs, built.prefix).bytes
    assert build_base(tmp_path) == built
    assert parts["builds"] == 1


def test_refresh_with_the_same_packages_keeps_the_base(
    tmp_path: Path, parts: dict[str, int]
) -> None:
    built = build_base(tmp_path)
    assert build_base(tmp_path, refresh=True) == built
    assert [path.name for path in (tmp_path / "bases").iterdir() if path.is_dir()] == [built.id]
    assert parts["builds"] == 2


def test_base_with_32bit_has_another_id(tmp_path: Path, parts: dict[str, int]) -> None:
    plain, both = build_base(tmp_path), build_base(tmp_path, with_32bit=True)
    assert plain.id != both.id
    assert both.with_32bit
    assert parts["builds"] == 2


@pytest.mark.parametrize("step", bases.STEPS, ids=lambda step: step.name)
@pytest.mark.usefixtures("parts")
def test_failed_build_leaves_nothing(tmp_path: Path, step: bases.BuildStep) -> None:
    def fail(reached: bases.BuildStep) -> None:
        if reached == step:
            raise BaseBuildFailed("It failed.")

    with pytest.raises(BaseBuildFailed):
        build_base(tmp_path, progress=fail)
    assert [path.name for path in (tmp_path / "bases").iterdir()] == [".lock"]


@pytest.mark.usefixtures("parts")
def test_build_removes_leftovers_of_crashed_builds(tmp_path: Path) -> None:
    write(tmp_path / "bases/.building-x/rootfs/file")
    write(tmp_path / "bases/.removing-y/rootfs/file")
    built = build_base(tmp_path)
    names = {path.name for path in (tmp_path / "bases").iterdir()}
    assert names == {".lock", built.id}


def test_build_requires_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(PermissionDenied, match="Use sudo"):
        build_base(tmp_path)


def test_build_requires_x86_64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(BaseBuildFailed, match="this one is aarch64"):
        build_base(tmp_path)


def test_latest_base_is_the_newest_complete_one(tmp_path: Path) -> None:
    assert latest_base(tmp_path) is None
    save(tmp_path, "old", built="2026-01-01T00:00:00+00:00")
    save(tmp_path, "new", built="2026-02-01T00:00:00+00:00")
    write(tmp_path / "bases/broken/base.json", "{")
    (tmp_path / "bases/empty").mkdir()
    write(tmp_path / "bases/.building-x/base.json", "{}")
    assert [base.id for base in list_bases(tmp_path)] == ["new", "old"]
    found = latest_base(tmp_path)
    assert found is not None
    assert found.id == "new"
    assert not found.is_current


def test_base_is_removed_by_id_prefix(tmp_path: Path) -> None:
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


def test_prepare_prefix_writes_files_without_drive_content(tmp_path: Path) -> None:
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
    assert system.value(key, "CurrentBuildNumber") == RegistryValue.text("17763")
    assert system.value(key, "UBR") == RegistryValue.dword(805)


@pytest.mark.parametrize(
    ("machine", "with_32bit", "refused"),
    [
        (PeMachine.AMD64, False, ""),
        (PeMachine.AMD64, True, ""),
        (PeMachine.I386, True, ""),
        (PeMachine.I386, False, "winpod base build --with-32bit"),
        (PeMachine.ARM64, True, "for ARM64"),
        (0x1234, False, "machine 0x1234"),
    ],
)
def test_program_for_another_machine_is_rejected(
    machine: int, with_32bit: bool, refused: str, tmp_path: Path
) -> None:
    base = read(save(tmp_path, with32Bit=with_32bit))
    file = write(tmp_path / "app.exe", program(machine=machine))
    if not refused:
        refuse_unsupported_program(base, file)
        return
    with pytest.raises(UnsupportedProgram, match=refused):
        refuse_unsupported_program(base, file)


def test_dotnet_framework_program_is_rejected(tmp_path: Path) -> None:
    base = read(save(tmp_path))
    file = write(tmp_path / "app.exe", program(managed=True))
    with pytest.raises(UnsupportedProgram, match=r"web\.exe is a program for \.NET Framework"):
        refuse_unsupported_program(base, file, "web.exe")


def test_file_that_is_not_a_program_is_rejected(tmp_path: Path) -> None:
    base = read(save(tmp_path))
    with pytest.raises(UnsupportedProgram, match="not a Windows program"):
        refuse_unsupported_program(base, write(tmp_path / "script.sh", "#!/bin/sh\n"))


def test_package_versions_are_read_from_file_names(tmp_path: Path) -> None:
    names = ("wine64_10.0~repack-6_amd64.deb", "libwine_1%3a2_i386.deb")
    found = [rootfs_builder._name_and_version(tmp_path / name) for name in names]
    assert found == [("wine64", "10.0~repack-6"), ("libwine:i386", "1:2")]

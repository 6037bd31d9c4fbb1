"""What goes wrong around the runtime: each is a sentence, loses nothing, and leaves nothing."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.e2e.runtime_process import DidNotStart, RuntimeProcess
from tests.support.full_disk import fill

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.images.base.builder import Base

RUNNING, EXITED = api.CONTAINER_RUNNING, api.CONTAINER_EXITED
DISK_FULL = 112


@pytest.fixture
async def runtime(base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    async with RuntimeProcess.running(tmp_path, base) as machine:
        yield machine


def run(*command: str) -> None:
    subprocess.run(command, check=True)


async def conditions(runtime: RuntimeProcess) -> dict[str, Any]:
    status = (await runtime.call(api.StatusRequest())).status
    return {condition.type: condition for condition in status.conditions}


async def refused(runtime: RuntimeProcess, request: Any) -> str:
    """Return the error of a call; it must not be an internal error."""
    with pytest.raises(RemoteError) as caught:
        await runtime.call(request)
    assert "failed with an internal error" not in str(caught.value), runtime.log.read_text()[-3000:]
    return str(caught.value)


async def works(runtime: RuntimeProcess, name: str = "fine") -> None:
    """A pod can be run, and its program does what it should."""
    pod = await runtime.run_pod(name)
    container = await runtime.begin(pod, "leaves-more", name=name)
    assert (await runtime.until_exited(container)).exit_code == 0
    await runtime.remove_pod(pod)


async def test_one_broken_record_does_not_take_the_others_along(runtime: RuntimeProcess) -> None:
    kept, broken = await runtime.run_pod("kept"), await runtime.run_pod("broken")
    container = await runtime.begin(kept, "ticks", name="kept")
    other = await runtime.begin(broken, "ticks", name="broken")
    third = await runtime.begin(kept, "ticks", name="third")
    await runtime.end()
    with sqlite3.connect(runtime.own / "state.db") as database:
        database.execute("UPDATE sandboxes SET config = x'ffff' WHERE id = ?", [broken])
        database.execute("UPDATE containers SET phase = 'dancing' WHERE id = ?", [third])
    await runtime.start()
    assert {pod.id for pod in await runtime.pods()} == {kept}
    assert {c.id for c in await runtime.containers()} == {container, other}
    assert (await runtime.status(container)).state == RUNNING
    await runtime.remove(other)
    await runtime.remove_pod(kept)
    assert runtime.leftovers() == {}


@pytest.mark.parametrize("damage", ["garbage", "cut short"])
async def test_a_broken_state_is_a_sentence_and_harms_no_container(
    runtime: RuntimeProcess, damage: str
) -> None:
    container = await runtime.begin(await runtime.run_pod(), "ticks")
    await runtime.end(signal.SIGTERM)
    state = runtime.own / "state.db"
    whole = state.read_bytes()
    size = len(whole)
    state.write_bytes(os.urandom(size) if damage == "garbage" else whole[: size // 2])
    with pytest.raises(DidNotStart, match=r"the runtime's state in .* cannot be read"):
        await runtime.start()
    assert "Traceback" not in runtime.log.read_text()
    await runtime.ended()
    state.write_bytes(whole)
    await runtime.start()
    assert (await runtime.status(container)).state == RUNNING


async def test_without_its_state_a_runtime_ends_what_nobody_knows(runtime: RuntimeProcess) -> None:
    await runtime.begin(await runtime.run_pod(), "ticks")
    await runtime.end()
    for file in runtime.own.glob("state.db*"):
        file.unlink()
    await runtime.start()
    assert runtime.leftovers() == {}
    await works(runtime)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """A file that leaves no byte of the disk that a folder is on."""
    ballast = folder / "ballast"
    fill(ballast)
    try:
        yield
    finally:
        ballast.unlink()


@asynccontextmanager
async def runtime_on_a_disk_of(
    size: str, base: Base, tmp_path: Path
) -> AsyncIterator[RuntimeProcess]:
    disk = tmp_path / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk))
    try:
        async with RuntimeProcess.running(disk, base) as machine:
            yield machine
    finally:
        run("umount", "--lazy", str(disk))


@pytest.fixture
async def small(base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    """A runtime whose root is on a disk of its own, and a small one."""
    async with runtime_on_a_disk_of("64m", base, tmp_path) as machine:
        yield machine


@pytest.fixture
async def modest(base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    """One with room for a container that writes, and for little more."""
    async with runtime_on_a_disk_of("256m", base, tmp_path) as machine:
        yield machine


async def run_pods_for_ever(runtime: RuntimeProcess) -> None:
    """Until nothing is left that was set aside."""
    for number in count():
        await runtime.run_pod(f"more-{number}")


async def test_a_full_disk_is_a_sentence_and_with_room_again_all_works(
    small: RuntimeProcess,
) -> None:
    pod = await small.run_pod()
    container = await small.begin(pod, "ticks")
    ending = await small.begin(pod, "sleep", name="ending")
    with filled(small.folder):
        await refused(small, small.container_request(pod, "ticks", name="more"))
        with pytest.raises(RemoteError, match=r"room|space"):
            await run_pods_for_ever(small)
        assert (await small.status(container)).state == RUNNING
        await small.stop(ending)
        assert (await small.status(ending)).state == EXITED
        await small.remove(ending)
        await small.call(api.ListPodSandboxRequest())
    for one in await small.pods():
        if one.id != pod:
            await small.remove_pod(one.id)
    assert {c.id for c in await small.containers()} == {container}
    await works(small)
    await small.restart()
    assert (await small.status(container)).state == RUNNING


async def test_who_writes_all_that_the_machine_has_left_leaves_room_for_others(
    modest: RuntimeProcess,
) -> None:
    container = await modest.begin(await modest.run_pod(), "disk")
    seen = await modest.until_exited(container)
    assert seen.exit_code == 0
    error, written = re.findall(r"error (\d+) after (\d+) MiB", modest.said())[0]
    assert int(error) == DISK_FULL
    assert int(written) >= 64
    assert shutil.disk_usage(modest.folder).free >= 16 << 20
    await works(modest)


async def test_a_start_on_a_full_disk_says_so_or_works(small: RuntimeProcess) -> None:
    container = await small.begin(await small.run_pod(), "ticks")
    await small.end(signal.SIGTERM)
    with filled(small.root):
        with contextlib.suppress(DidNotStart):
            await small.start()
        said = small.log.read_text()
        assert "Traceback" not in said
        assert small.lives() or re.search("space|full", said)
        await small.end()
    await small.start()
    assert (await small.status(container)).state == RUNNING


async def test_a_root_that_cannot_be_written_is_a_sentence(small: RuntimeProcess) -> None:
    await small.end(signal.SIGTERM)
    disk = small.folder
    log = disk.parent / "runtime.log"
    run("mount", "-o", "remount,ro", str(disk))
    try:
        small.log = log
        with pytest.raises(DidNotStart, match=r"[Rr]ead-only file system") as caught:
            await small.start(WINPOD_DIE=str(log.with_suffix(".sock")))
        assert "Traceback" not in str(caught.value)
        await small.ended()
    finally:
        run("mount", "-o", "remount,rw", str(disk))


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ("conmon", "this host has no conmon (package conmon)"),
        ("runc", "This host has no runc and no crun."),
        ("mkfs.ext4", "this host has no mkfs.ext4 (package e2fsprogs)"),
    ],
)
async def test_a_missing_program_is_told_by_status_and_by_what_needs_it(
    runtime: RuntimeProcess, tmp_path: Path, tool: str, message: str
) -> None:
    container = await runtime.begin(await runtime.run_pod("before"), "ticks", name="before")
    await runtime.end()
    runtime.config.write_text("[runtime]\nwarm_shells = 1\n")
    await runtime.start(PATH=path_without(tool, tmp_path / "bin"))
    ready = (await conditions(runtime))["RuntimeReady"]
    assert (ready.status, ready.reason) == (False, "ComputeNotReady")
    assert message in ready.message
    pod = await runtime.run_pod()
    assert ready.message in await refused(runtime, runtime.container_request(pod, "ticks"))
    assert (await runtime.status(container)).state == RUNNING
    await runtime.end(signal.SIGTERM)
    assert "Traceback" not in runtime.log.read_text()
    assert list((runtime.own / "warm").glob("*")) == []
    await runtime.start()
    assert (await conditions(runtime))["RuntimeReady"].status
    assert (await runtime.status(container)).state == RUNNING
    await works(runtime)


def path_without(tool: str, folder: Path) -> str:
    folder.mkdir()
    for directory in reversed(os.get_exec_path()):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            (folder / program.name).unlink(missing_ok=True)
            (folder / program.name).symlink_to(program)
    (folder / tool).unlink()
    return str(folder)


async def test_a_missing_base_is_told_at_the_start(runtime: RuntimeProcess) -> None:
    container = await runtime.begin(await runtime.run_pod(), "ticks")
    await runtime.end()
    bases = runtime.root / "bases"
    target = bases.readlink()
    bases.unlink()
    with pytest.raises(DidNotStart, match="winpod base build"):
        await runtime.start()
    await runtime.ended()
    bases.symlink_to(target)
    await runtime.start()
    assert (await runtime.status(container)).state == RUNNING


async def test_a_pod_whose_network_namespace_was_deleted_can_be_removed(
    runtime: RuntimeProcess,
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks")
    await runtime.until_said("tick 2\n")
    netns = runtime.own / "netns" / pod
    run("umount", str(netns))
    netns.unlink()
    sentence = await refused(runtime, runtime.container_request(pod, "ticks", name="other"))
    assert "network" in sentence
    await runtime.restart()
    assert [item.state for item in await runtime.pods()] == [api.SANDBOX_NOTREADY]
    assert (await runtime.status(container)).state == EXITED
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}
    await works(runtime)


async def test_a_container_whose_folder_was_deleted_can_be_removed(runtime: RuntimeProcess) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks")
    await runtime.until_said("tick 2\n")
    folder = runtime.folder_of(container)
    run("umount", "--lazy", str(folder / "shell/disk"))
    shutil.rmtree(folder)
    await runtime.restart()
    seen = await runtime.until_exited(container)
    assert (seen.exit_code, seen.reason) == (255, "Unknown")
    await runtime.remove(container)
    await works(runtime)
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}


async def add_plugin_that_fails(runtime: RuntimeProcess, place: Path, *commands: str) -> Path:
    """It fails at these commands while the file is there that is named."""
    await runtime.end()
    broken = place / "broken"
    plugins, fails = place / "plugins", place / "plugins/fails"
    plugins.mkdir()
    fails.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        "given, command = json.load(sys.stdin), os.environ['CNI_COMMAND']\n"
        f"if pathlib.Path({str(broken)!r}).exists() and command in {commands}:\n"
        "    print(json.dumps({'cniVersion': '1.0.0', 'code': 100, 'msg': 'it is so wanted'}))\n"
        "    sys.exit(1)\n"
        "if command == 'ADD':\n"
        "    print(json.dumps(given['prevResult']))\n"
    )
    fails.chmod(0o755)
    conflist = next((runtime.own / "cni/net.d").glob("*.conflist"))
    network = json.loads(conflist.read_text())
    network["plugins"].append({"type": "fails"})
    conflist.write_text(json.dumps(network))
    with runtime.config.open("a") as config:
        config.write(f'[network]\nplugins = ["{plugins}", "/usr/lib/cni", "/opt/cni/bin"]\n')
    await runtime.start()
    return broken


@pytest.mark.parametrize("commands", [("ADD",), ("ADD", "DEL")], ids=["add", "add and del"])
async def test_cni_that_fails_half_way_leaves_nothing(
    runtime: RuntimeProcess, tmp_path: Path, commands: tuple[str, ...]
) -> None:
    broken = await add_plugin_that_fails(runtime, tmp_path, *commands)
    broken.touch()
    request = api.RunPodSandboxRequest(
        config=api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="pod", uid="1"))
    )
    assert "it is so wanted" in await refused(runtime, request)
    assert {pod.state for pod in await runtime.pods()} <= {api.SANDBOX_NOTREADY}
    broken.unlink()
    await runtime.remove_all()
    assert runtime.leftovers() == {}


@pytest.mark.parametrize("restarted", [False, True], ids=["asked again", "after a restart"])
async def test_a_pod_that_cni_does_not_let_go_has_stopped_and_goes_later(
    runtime: RuntimeProcess, tmp_path: Path, restarted: bool
) -> None:
    broken = await add_plugin_that_fails(runtime, tmp_path, "DEL")
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "sleep")
    broken.touch()
    stop = api.StopPodSandboxRequest(pod_sandbox_id=pod)
    assert "it is so wanted" in await refused(runtime, stop)
    assert [pod.state for pod in await runtime.pods()] == [api.SANDBOX_NOTREADY]
    assert (await runtime.status(container)).state == EXITED
    broken.unlink()
    if restarted:
        await runtime.restart()
    else:
        await runtime.stop_pod(pod)
    assert runtime.leftovers("sandboxes", "namespaces", "leases", "links", "processes") == {}
    await runtime.remove_all()
    assert runtime.leftovers() == {}


async def test_a_clock_that_jumps_back_confuses_nobody(runtime: RuntimeProcess) -> None:
    container = await runtime.begin(await runtime.run_pod(), "ticks", "7")
    await runtime.until_said("tick 2\n")
    await runtime.end()
    ahead = 3600 * 10**9
    with sqlite3.connect(runtime.own / "state.db") as database:
        database.execute(
            "UPDATE containers SET created_at = created_at + ?, started_at = started_at + ?",
            [ahead, ahead],
        )
    await runtime.start()
    (runtime.data / "go").touch()
    seen = await runtime.until_exited(container)
    assert seen.exit_code == 7
    assert seen.created_at <= seen.started_at <= seen.finished_at


async def test_after_a_restart_of_the_machine_everything_has_ended_and_pods_run_again(
    runtime: RuntimeProcess,
) -> None:
    pod = await runtime.run_pod()
    running = await runtime.begin(pod, "ticks")
    created = await runtime.create(pod, "ticks", name="created")
    await runtime.until_said("tick 2\n")
    await runtime.end()
    runtime.power_off()
    await runtime.start()
    assert [item.state for item in await runtime.pods()] == [api.SANDBOX_NOTREADY]
    seen = await runtime.status(running)
    assert (seen.state, seen.exit_code, seen.reason) == (EXITED, 255, "Unknown")
    assert "not running" in await refused(runtime, api.StartContainerRequest(container_id=created))
    await works(runtime, "again")
    await runtime.remove(running)
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}

"""Failures around the runtime are reported, lose no state, and leave nothing behind."""

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


def run_command(*command: str) -> None:
    subprocess.run(command, check=True)


async def conditions(runtime: RuntimeProcess) -> dict[str, Any]:
    status = (await runtime.call(api.StatusRequest())).status
    return {condition.type: condition for condition in status.conditions}


async def call_error(runtime: RuntimeProcess, request: Any) -> str:
    """Return the error of a call; it must not be an internal error."""
    with pytest.raises(RemoteError) as caught:
        await runtime.call(request)
    assert "failed with an internal error" not in str(caught.value), runtime.log.read_text()[-3000:]
    return str(caught.value)


async def check_pod_runs(runtime: RuntimeProcess, name: str = "fine") -> None:
    """Check that a pod runs and its program succeeds."""
    pod = await runtime.run_pod(name)
    container = await runtime.begin(pod, "leaves-more", name=name)
    assert (await runtime.until_exited(container)).exit_code == 0
    await runtime.remove_pod(pod)


async def test_corrupt_records_do_not_affect_others(runtime: RuntimeProcess) -> None:
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
async def test_unreadable_state_is_reported_and_containers_survive(
    runtime: RuntimeProcess, damage: str
) -> None:
    container = await runtime.begin(await runtime.run_pod(), "ticks")
    await runtime.end(signal.SIGTERM)
    state = runtime.own / "state.db"
    content = state.read_bytes()
    size = len(content)
    state.write_bytes(os.urandom(size) if damage == "garbage" else content[: size // 2])
    with pytest.raises(DidNotStart, match=r"the runtime's state in .* cannot be read"):
        await runtime.start()
    assert "Traceback" not in runtime.log.read_text()
    await runtime.ended()
    state.write_bytes(content)
    await runtime.start()
    assert (await runtime.status(container)).state == RUNNING


async def test_runtime_without_state_removes_unknown_containers(runtime: RuntimeProcess) -> None:
    await runtime.begin(await runtime.run_pod(), "ticks")
    await runtime.end()
    for file in runtime.own.glob("state.db*"):
        file.unlink()
    await runtime.start()
    assert runtime.leftovers() == {}
    await check_pod_runs(runtime)


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Fill the disk of a directory."""
    filler = folder / "ballast"
    fill(filler)
    try:
        yield
    finally:
        filler.unlink()


@asynccontextmanager
async def runtime_on_disk(size: str, base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    disk = tmp_path / "disk"
    disk.mkdir()
    run_command("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk))
    try:
        async with RuntimeProcess.running(disk, base) as machine:
            yield machine
    finally:
        run_command("umount", "--lazy", str(disk))


@pytest.fixture
async def small_runtime(base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    """Run a runtime on its own small disk."""
    async with runtime_on_disk("64m", base, tmp_path) as machine:
        yield machine


@pytest.fixture
async def medium_runtime(base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    """Run a runtime on its own disk with space for one container that writes."""
    async with runtime_on_disk("256m", base, tmp_path) as machine:
        yield machine


async def run_pods_forever(runtime: RuntimeProcess) -> None:
    """Run pods until the reserved space is used up."""
    for number in count():
        await runtime.run_pod(f"more-{number}")


async def test_full_disk_is_reported_and_recovered_from(
    small_runtime: RuntimeProcess,
) -> None:
    pod = await small_runtime.run_pod()
    container = await small_runtime.begin(pod, "ticks")
    ending = await small_runtime.begin(pod, "sleep", name="ending")
    with full_disk(small_runtime.folder):
        await call_error(small_runtime, small_runtime.container_request(pod, "ticks", name="more"))
        with pytest.raises(RemoteError, match=r"room|space"):
            await run_pods_forever(small_runtime)
        assert (await small_runtime.status(container)).state == RUNNING
        await small_runtime.stop(ending)
        assert (await small_runtime.status(ending)).state == EXITED
        await small_runtime.remove(ending)
        await small_runtime.call(api.ListPodSandboxRequest())
    for pod_status in await small_runtime.pods():
        if pod_status.id != pod:
            await small_runtime.remove_pod(pod_status.id)
    assert {c.id for c in await small_runtime.containers()} == {container}
    await check_pod_runs(small_runtime)
    await small_runtime.restart()
    assert (await small_runtime.status(container)).state == RUNNING


async def test_container_cannot_use_reserved_disk_space(
    medium_runtime: RuntimeProcess,
) -> None:
    container = await medium_runtime.begin(await medium_runtime.run_pod(), "disk")
    status = await medium_runtime.until_exited(container)
    assert status.exit_code == 0
    error, written = re.findall(r"error (\d+) after (\d+) MiB", medium_runtime.said())[0]
    assert int(error) == DISK_FULL
    assert int(written) >= 64
    assert shutil.disk_usage(medium_runtime.folder).free >= 16 << 20
    await check_pod_runs(medium_runtime)


async def test_start_on_full_disk_works_or_is_reported(small_runtime: RuntimeProcess) -> None:
    container = await small_runtime.begin(await small_runtime.run_pod(), "ticks")
    await small_runtime.end(signal.SIGTERM)
    with full_disk(small_runtime.root):
        with contextlib.suppress(DidNotStart):
            await small_runtime.start()
        output = small_runtime.log.read_text()
        assert "Traceback" not in output
        assert small_runtime.lives() or re.search("space|full", output)
        await small_runtime.end()
    await small_runtime.start()
    assert (await small_runtime.status(container)).state == RUNNING


async def test_read_only_root_is_reported(small_runtime: RuntimeProcess) -> None:
    await small_runtime.end(signal.SIGTERM)
    disk = small_runtime.folder
    log = disk.parent / "runtime.log"
    run_command("mount", "-o", "remount,ro", str(disk))
    try:
        small_runtime.log = log
        with pytest.raises(DidNotStart, match=r"[Rr]ead-only file system") as caught:
            await small_runtime.start(WINPOD_DIE=str(log.with_suffix(".sock")))
        assert "Traceback" not in str(caught.value)
        await small_runtime.ended()
    finally:
        run_command("mount", "-o", "remount,rw", str(disk))


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ("conmon", "this host has no conmon (package conmon)"),
        ("runc", "This host has no runc and no crun."),
        ("mkfs.ext4", "this host has no mkfs.ext4 (package e2fsprogs)"),
    ],
)
async def test_missing_tool_is_reported_in_status_and_errors(
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
    assert ready.message in await call_error(runtime, runtime.container_request(pod, "ticks"))
    assert (await runtime.status(container)).state == RUNNING
    await runtime.end(signal.SIGTERM)
    assert "Traceback" not in runtime.log.read_text()
    assert list((runtime.own / "warm").glob("*")) == []
    await runtime.start()
    assert (await conditions(runtime))["RuntimeReady"].status
    assert (await runtime.status(container)).state == RUNNING
    await check_pod_runs(runtime)


def path_without(tool: str, folder: Path) -> str:
    folder.mkdir()
    for directory in reversed(os.get_exec_path()):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            (folder / program.name).unlink(missing_ok=True)
            (folder / program.name).symlink_to(program)
    (folder / tool).unlink()
    return str(folder)


async def test_missing_base_is_reported_at_start(runtime: RuntimeProcess) -> None:
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


async def test_pod_with_deleted_network_namespace_is_removable(
    runtime: RuntimeProcess,
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks")
    await runtime.until_said("tick 2\n")
    netns = runtime.own / "netns" / pod
    run_command("umount", str(netns))
    netns.unlink()
    message = await call_error(runtime, runtime.container_request(pod, "ticks", name="other"))
    assert "network" in message
    await runtime.restart()
    assert [item.state for item in await runtime.pods()] == [api.SANDBOX_NOTREADY]
    assert (await runtime.status(container)).state == EXITED
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}
    await check_pod_runs(runtime)


async def test_container_with_deleted_directory_is_removable(runtime: RuntimeProcess) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks")
    await runtime.until_said("tick 2\n")
    folder = runtime.folder_of(container)
    run_command("umount", "--lazy", str(folder / "shell/disk"))
    shutil.rmtree(folder)
    await runtime.restart()
    status = await runtime.until_exited(container)
    assert (status.exit_code, status.reason) == (255, "Unknown")
    await runtime.remove(container)
    await check_pod_runs(runtime)
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}


async def add_failing_plugin(runtime: RuntimeProcess, directory: Path, *commands: str) -> Path:
    """Add a CNI plugin that fails for these commands while the returned file exists."""
    await runtime.end()
    marker = directory / "broken"
    plugins, fails = directory / "plugins", directory / "plugins/fails"
    plugins.mkdir()
    fails.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        "given, command = json.load(sys.stdin), os.environ['CNI_COMMAND']\n"
        f"if pathlib.Path({str(marker)!r}).exists() and command in {commands}:\n"
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
    return marker


@pytest.mark.parametrize("commands", [("ADD",), ("ADD", "DEL")], ids=["add", "add and del"])
async def test_failed_cni_add_leaves_nothing(
    runtime: RuntimeProcess, tmp_path: Path, commands: tuple[str, ...]
) -> None:
    marker = await add_failing_plugin(runtime, tmp_path, *commands)
    marker.touch()
    request = api.RunPodSandboxRequest(
        config=api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="pod", uid="1"))
    )
    assert "it is so wanted" in await call_error(runtime, request)
    assert {pod.state for pod in await runtime.pods()} <= {api.SANDBOX_NOTREADY}
    marker.unlink()
    await runtime.remove_all()
    assert runtime.leftovers() == {}


@pytest.mark.parametrize("restarted", [False, True], ids=["retried", "after a restart"])
async def test_pod_with_failed_cni_del_is_stopped_and_cleaned_up_later(
    runtime: RuntimeProcess, tmp_path: Path, restarted: bool
) -> None:
    marker = await add_failing_plugin(runtime, tmp_path, "DEL")
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "sleep")
    marker.touch()
    stop = api.StopPodSandboxRequest(pod_sandbox_id=pod)
    assert "it is so wanted" in await call_error(runtime, stop)
    assert [pod.state for pod in await runtime.pods()] == [api.SANDBOX_NOTREADY]
    assert (await runtime.status(container)).state == EXITED
    marker.unlink()
    if restarted:
        await runtime.restart()
    else:
        await runtime.stop_pod(pod)
    assert runtime.leftovers("sandboxes", "namespaces", "leases", "links", "processes") == {}
    await runtime.remove_all()
    assert runtime.leftovers() == {}


async def test_clock_jump_backwards_is_tolerated(runtime: RuntimeProcess) -> None:
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
    status = await runtime.until_exited(container)
    assert status.exit_code == 7
    assert status.created_at <= status.started_at <= status.finished_at


async def test_host_reboot_ends_containers_and_pods_run_again(
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
    status = await runtime.status(running)
    assert (status.state, status.exit_code, status.reason) == (EXITED, 255, "Unknown")
    assert "not running" in await call_error(
        runtime, api.StartContainerRequest(container_id=created)
    )
    await check_pod_runs(runtime, "again")
    await runtime.remove(running)
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}

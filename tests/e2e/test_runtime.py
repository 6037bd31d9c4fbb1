"""Windows containers through the CRI, with real images, Wine and logs."""

from pathlib import Path

import pytest
from tests.support.cri_node import create, run_sandbox, start, status
from tests.support.e2e.runtime_node import Node, create_with, ended, node, pulled, run, said
from tests.support.registries import home, registry

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError

__all__ = ["home", "node", "registry"]


async def test_program_runs_with_log_and_exit_code(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        container_status, log = await run(
            client, image, tmp_path, "cmd", "/c", "type app.txt & ver & echo no>&2 & exit 1060"
        )
    assert container_status.exit_code == 1060
    assert container_status.reason == "Error"
    assert "Microsoft Windows 10.0.20348" in said(log, "stdout")
    assert "app" in said(log, "stdout")
    assert said(log, "stderr").strip() == "no"


async def test_mounts_and_environment_are_applied(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/in.txt").write_text("from the host")
    (tmp_path / "one.txt").write_text("one file")
    mounts = [
        api.Mount(host_path=str(tmp_path / "data"), container_path="C:\\Data"),
        api.Mount(host_path=str(tmp_path / "one.txt"), container_path="/etc/one", readonly=True),
    ]
    async with node as client:
        image = await pulled(client, home, registry)
        line = "type c:\\DATA\\in.txt & type C:\\etc\\one & echo %who%>C:\\data\\out.txt"
        envs = [api.KeyValue(key="WHO", value=b"winpod")]
        container_status, log = await run(
            client, image, tmp_path, "cmd", "/c", line, mounts=mounts, envs=envs
        )
    assert container_status.exit_code == 0, log
    assert "from the host" in log
    assert "one file" in log
    assert (tmp_path / "data/out.txt").read_text().strip() == "winpod"


async def test_volume_is_mounted_only_in_its_container(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/in.txt").write_text("from the host")
    mount = api.Mount(host_path=str(tmp_path / "data"), container_path="C:\\data")
    line = ("cmd", "/c", "if exist C:\\data\\in.txt (exit 7) else (exit 8)")
    codes = {}
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        for name, mounts in (("has", [mount]), ("lacks", [])):
            container = await create_with(client, sandbox, image, line, name, {"mounts": mounts})
            await start(client, container)
            codes[name] = (await ended(client, container)).exit_code
    assert codes == {"has": 7, "lacks": 8}


async def test_pods_with_and_without_handler_run_on_one_node(
    node: Node, home: Path, registry: str
) -> None:
    handlers = {"plain": "", "named": "runhcs-wcow-process"}
    async with node as client:
        image = await pulled(client, home, registry)
        containers = {}
        for name, handler in handlers.items():
            sandbox = await run_sandbox(client, name, handler)
            line = ("cmd", "/c", "exit 7")
            containers[name] = await create_with(client, sandbox, image, line, name, {})
        for container in containers.values():
            await start(client, container)
        codes = [(await ended(client, c)).exit_code for c in containers.values()]
    assert codes == [7, 7]


async def test_missing_program_is_a_start_error(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        container = await create_with(client, sandbox, image, ("gone.exe",), "app", {})
        with pytest.raises(RemoteError, match="The system cannot find the file specified"):
            await start(client, container)
        container_status = await status(client, container)
    assert (container_status.exit_code, container_status.reason) == (128, "StartError")
    assert "cannot find the file" in container_status.message
    del tmp_path


async def test_container_survives_runtime_restart(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client, log_directory=str(tmp_path))
        container = await create(client, sandbox, image, log_path="long.log")
        line = ("cmd", "/c", "for /l %i in (1,1,4000) do @(echo %i & ping -n 2 127.0.0.1 >nul)")
        container = await create_with(
            client, sandbox, image, line, "long", {"log_path": "long.log"}
        )
        await start(client, container)
    before = (tmp_path / "long.log").read_text()
    async with node as client:
        assert (await status(client, container)).state == api.CONTAINER_RUNNING
        request = api.ExecSyncRequest(container_id=container, cmd=["cmd", "/c", "echo in"])
        answer = await client.call("ExecSync", request)
        assert (answer.stdout, answer.exit_code) == (b"in\r\n", 0)
        stop = api.StopContainerRequest(container_id=container, timeout=1)
        await client.call("StopContainer", stop)
        assert (await status(client, container)).state == api.CONTAINER_EXITED
    assert len((tmp_path / "long.log").read_text()) >= len(before)


async def test_exec_times_out(node: Node, home: Path, registry: str) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        line = ("cmd", "/c", "ping -n 100 127.0.0.1 >nul")
        container = await create_with(client, sandbox, image, line, "app", {})
        await start(client, container)
        request = api.ExecSyncRequest(container_id=container, cmd=list(line), timeout=1)
        with pytest.raises(RemoteError, match="timed out"):
            await client.call("ExecSync", request)


def read_cgroup(node: Node, controller: str, container: str, name: str) -> int:
    group = (node.root / "containers" / container / "shell/id").read_text()
    return int(Path(f"/sys/fs/cgroup/{controller}/winpod/{group}/{name}").read_text())


async def test_limits_are_set_and_updated(node: Node, home: Path, registry: str) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        limits = api.WindowsContainerResources(cpu_count=1, memory_limit_in_bytes=512 << 20)
        windows = api.WindowsContainerConfig(resources=limits)
        line = ("cmd", "/c", "ping -n 100 127.0.0.1 >nul")
        container = await create_with(client, sandbox, image, line, "app", {"windows": windows})
        await start(client, container)
        assert read_cgroup(node, "memory", container, "memory.limit_in_bytes") == 512 << 20
        assert read_cgroup(node, "cpu", container, "cpu.cfs_quota_us") == 100_000
        assert read_cgroup(node, "pids", container, "pids.max") > 0
        resources = api.WindowsContainerResources(memory_limit_in_bytes=768 << 20)
        request = api.UpdateContainerResourcesRequest(container_id=container, windows=resources)
        await client.call("UpdateContainerResources", request)
        assert read_cgroup(node, "memory", container, "memory.limit_in_bytes") == 768 << 20

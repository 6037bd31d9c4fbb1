"""Logs of real Windows programs through the CRI: format, rotation and loss."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.support.conmon_supervision import read_log
from tests.support.cri_node import run_sandbox, start
from tests.support.e2e.runtime_node import Node, create_with, ended, node, pulled
from tests.support.registries import home, registry

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError

__all__ = ["home", "node", "registry"]

LINE = "echo line %i & (if exist C:\\data\\go exit 0) & ping -n 2 127.0.0.1 >nul"
COUNT = ("cmd", "/c", f"for /l %i in (1,1,6000) do @({LINE})")
"""Prints lines until C:\\data\\go exists."""
TIMEOUT = 300.0


async def start_container(client: CriClient, image: str, folder: Path, *command: str) -> str:
    data = folder.with_name("data")
    data.mkdir()
    mount = api.Mount(host_path=str(data), container_path="C:\\data")
    sandbox = await run_sandbox(client, log_directory=str(folder))
    config = {"log_path": "app.log", "mounts": [mount]}
    container = await create_with(client, sandbox, image, command, "app", config)
    await start(client, container)
    return container


async def reopen(client: CriClient, container: str) -> None:
    await client.call("ReopenContainerLog", api.ReopenContainerLogRequest(container_id=container))


async def wait_until_logged(log: Path, text: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not log.exists() or text not in log.read_text():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)


async def test_lines_are_logged_per_stream(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        line = "echo one& echo two 1>&2& echo.& <nul set /p =no end"
        container = await start_container(client, image, tmp_path / "logs", "cmd", "/c", line)
        await ended(client, container)
    lines = read_log(tmp_path / "logs/app.log")
    assert [line[1:] for line in lines if line[0] == "stdout"] == [
        ("F", "one"),
        ("F", ""),
        ("P", "no end"),
    ]
    assert [line for line in lines if line[0] == "stderr"] == [("stderr", "F", "two ")]


async def test_reopened_log_loses_no_lines(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    log, old = tmp_path / "logs/app.log", tmp_path / "logs/app.log.1"
    async with node as client:
        image = await pulled(client, home, registry)
        container = await start_container(client, image, tmp_path / "logs", *COUNT)
        await wait_until_logged(log, "line 2")
        log.rename(old)
        await reopen(client, container)
        assert log.exists()
        await wait_until_logged(log, "line ")
        (tmp_path / "data/go").touch()
        await ended(client, container)
        lines = [line[2].strip() for line in (*read_log(old), *read_log(log))]
        log.unlink()
        with pytest.raises(RemoteError, match="CONTAINER_EXITED"):
            await reopen(client, container)
        assert not log.exists()
    assert len(lines) > 2
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]


async def test_program_survives_deleted_log_directory(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        container = await start_container(client, image, tmp_path / "logs", *COUNT)
        await wait_until_logged(tmp_path / "logs/app.log", "line 1")
        shutil.rmtree(tmp_path / "logs")
        with pytest.raises(RemoteError, match="its directory is gone"):
            await reopen(client, container)
        (tmp_path / "data/go").touch()
        assert (await ended(client, container)).exit_code == 0

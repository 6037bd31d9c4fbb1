"""The log of CRI calls."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.cri_node import Node, create, run_sandbox, start, status
from tests.support.pushed_images import push
from winpod.cli.log_format import JsonFormatter
from winpod.cri.call_log import MUTATING
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import IMAGE, RUNTIME, RemoteError

LOGGER = "winpod.cri.call_log"
SECRET = "hunter2"
READ_ONLY_PREFIXES = ("List", "Stream", "Get")
READ_ONLY = {
    *("Version", "Status", "RuntimeConfig", "ImageFsInfo", "ImageStatus", "ExecSync"),
    *("PodSandboxStatus", "ContainerStatus", "ContainerStats", "PodSandboxStats"),
}


def test_every_method_is_mutating_or_read_only() -> None:
    names = {method.name for service in (RUNTIME, IMAGE) for method in service.methods}
    assert {name for name in names if not name.startswith(READ_ONLY_PREFIXES)} == (
        MUTATING | READ_ONLY
    )
    assert not MUTATING & READ_ONLY


async def test_calls_are_logged_with_their_pod_container_and_result(
    tmp_path: Path, home: Path, registry: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    image = await push(home, f"{registry}/app:1", "2022")
    auth = api.AuthConfig(username="user", password=SECRET)
    async with Node(tmp_path).running() as client:
        request = api.PullImageRequest(image=api.ImageSpec(image=image), auth=auth)
        await client.call("PullImage", request)
        sandbox = await run_sandbox(client, annotations={"key": SECRET})
        variables = [api.KeyValue(key="PASSWORD", value=SECRET.encode())]
        container = await create(client, sandbox, image, envs=variables, args=[SECRET])
        await start(client, container)
        await status(client, container)
        with pytest.raises(RemoteError):
            await start(client, container)
        await client.call(
            "RemoveContainer", api.RemoveContainerRequest(container_id=container[:12])
        )
    lines: list[dict[str, Any]] = [
        json.loads(JsonFormatter().format(record))
        for record in caplog.records
        if record.name == LOGGER
    ]
    assert [(line["method"], line["result"], line["level"]) for line in lines] == [
        ("PullImage", "ok", "info"),
        ("RunPodSandbox", "ok", "info"),
        ("CreateContainer", "ok", "info"),
        ("StartContainer", "ok", "info"),
        ("StartContainer", "error", "info"),
        ("RemoveContainer", "ok", "info"),
    ]
    pull, run, *calls = lines
    assert (pull["image"], pull["image_id"][:7]) == (image, "sha256:")
    assert (run["pod"], run["sandbox"]) == ("shop/web", sandbox)
    for line in calls:
        fields = {key: line[key] for key in ("pod", "sandbox", "container", "container_name")}
        assert fields == {
            "pod": "shop/web",
            "sandbox": sandbox,
            "container": container,
            "container_name": "app",
        }
        assert (line["handler"], line["image"]) == ("runhcs-wcow-process", image)
        assert line["duration"] >= 0
    assert calls[2]["reason"] == "NotRunning"
    assert "pod=shop/web" in run["message"]
    assert SECRET not in json.dumps(lines)


async def test_read_only_calls_are_logged_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    async with Node(tmp_path).running() as client:
        await client.call("Version", api.VersionRequest())
    (record,) = (record for record in caplog.records if record.name == LOGGER)
    assert (record.levelno, vars(record)["method"]) == (logging.DEBUG, "Version")

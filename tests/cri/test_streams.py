"""Exec, attach and port-forward as calls that answer a URL, over simulated containers."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.cri.streaming.stand_in_client import StandInClient, exec_client
from tests.cri.test_life import client, create, image, node, run_sandbox, start
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.cri.streaming import spdy_frames as frames
from winpod.cri.streams import reachable_host

__all__ = ["client", "image", "node"]


@pytest.fixture
async def container(client: Client, image: str) -> str:
    container = await create(client, await run_sandbox(client), image)
    await start(client, container)
    return container


async def url(client: Client, name: str, **request: Any) -> str:
    return str((await client.call(name, getattr(api, f"{name}Request")(**request))).url)


async def refused(client: Client, name: str, **request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(RemoteError) as caught:
        await url(client, name, **request)
    return caught.value.status, str(caught.value)


async def finished(where: str, *streams: str) -> tuple[dict[str, bytes], Any]:
    """What a client with these streams got to the end, and the status."""
    async with exec_client(where, *streams) as (client, ids):
        got = await client.collect()
    found = {name: got.get(number, b"") for name, number in ids.items()}
    return found, json.loads(found.pop("error"))


async def test_a_command_is_executed_where_the_url_says(client: Client, container: str) -> None:
    where = await url(client, "Exec", container_id=container, cmd=["ver", "/?"], stdout=True)
    assert where.startswith("http://127.0.0.1:")
    found, status = await finished(where, "stdout")
    assert found == {"stdout": b"simulated: ver /?\r\n"}
    assert status["status"] == "Success"


async def test_an_attached_client_is_let_go_when_the_container_ends(
    client: Client, container: str
) -> None:
    where = await url(client, "Attach", container_id=container, stdin=True, stdout=True)
    async with exec_client(where, "stdin", "stdout") as (attached, ids):
        for _ in ids:
            await attached.until(frames.SynReply)
        await client.call("StopContainer", api.StopContainerRequest(container_id=container))
        got = await attached.collect()
    assert json.loads(got[ids["error"]])["status"] == "Success"


async def test_a_port_of_the_pod_is_reached(client: Client) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.read())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        where = await url(client, "PortForward", pod_sandbox_id=await run_sandbox(client))
        async with await StandInClient.connect(where, "portforward.k8s.io") as forward:
            headers = {"port": str(port), "requestid": "0"}
            await forward.open(streamtype="error", **headers)
            data = await forward.open(streamtype="data", **headers)
            await forward.write(data, b"you", fin=True)
            async for frame in forward.received():
                if getattr(frame, "data", b""):
                    assert getattr(frame, "data", b"") == b"heard you"
                    break


@pytest.mark.parametrize("name", ["Exec", "Attach"])
async def test_streams_that_cannot_be_are_refused(
    client: Client, container: str, name: str
) -> None:
    more = {"cmd": ["ver"]} if name == "Exec" else {}
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    asked = {"container_id": container, **more}
    assert await refused(client, name, stdout=True, **more) == (
        invalid,
        "missing required container_id: exec and attach name their container.",
    )
    status, sentence = await refused(client, name, **asked)
    assert (status, sentence) == (invalid, "one of stdin, stdout, or stderr must be set.")
    status, sentence = await refused(client, name, tty=True, stderr=True, **asked)
    assert status is invalid
    assert "tty and stderr cannot both be true" in sentence
    asked["container_id"] = "nobody"
    assert (await refused(client, name, stdout=True, **asked))[0] is grpc.StatusCode.NOT_FOUND


async def test_a_command_must_be_named(client: Client, container: str) -> None:
    status, _ = await refused(client, "Exec", container_id=container, stdout=True)
    assert status is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["Exec", "Attach"])
async def test_only_what_runs_has_streams(client: Client, container: str, name: str) -> None:
    more = {"cmd": ["ver"]} if name == "Exec" else {}
    asked = {"container_id": container, "stdout": True, **more}
    early = await url(client, name, **asked)
    await client.call("StopContainer", api.StopContainerRequest(container_id=container))
    status, sentence = await refused(client, name, **asked)
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert "CONTAINER_EXITED" in sentence
    assert "CONTAINER_EXITED" in (await finished(early, "stdout"))[1]["message"]


async def test_only_a_ready_sandbox_is_forwarded_to(client: Client) -> None:
    sandbox = await run_sandbox(client)
    await client.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    for id_, code in (
        (sandbox, "FAILED_PRECONDITION"),
        ("no", "NOT_FOUND"),
        ("", "INVALID_ARGUMENT"),
    ):
        status, _ = await refused(client, "PortForward", pod_sandbox_id=id_)
        assert status is grpc.StatusCode[code]


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        (["unix:/run/winpod.sock"], "127.0.0.1"),
        (["unix:/run/winpod.sock", "10.0.0.7:2375"], "10.0.0.7"),
        (["[fd00::7]:2375"], "fd00::7"),
        (["0.0.0.0:2375"], "127.0.0.1"),
        (["localhost:2375"], "127.0.0.1"),
    ],
)
def test_urls_name_a_host_that_clients_reach(addresses: list[str], host: str) -> None:
    assert reachable_host(addresses) == host

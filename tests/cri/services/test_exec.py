"""Exec, Attach and PortForward calls with simulated containers."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.support.cri_node import client, create, image, node, run_sandbox, start
from tests.support.streaming_client import StandInClient, exec_client
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.cri.services.exec import advertised_host
from winpod.cri.streaming import spdy_frames as frames

__all__ = ["client", "image", "node"]


@pytest.fixture
async def container(client: CriClient, image: str) -> str:
    container = await create(client, await run_sandbox(client), image)
    await start(client, container)
    return container


async def url(client: CriClient, name: str, **request: Any) -> str:
    return str((await client.call(name, getattr(api, f"{name}Request")(**request))).url)


async def refused(client: CriClient, name: str, **request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(RemoteError) as caught:
        await url(client, name, **request)
    return caught.value.status, str(caught.value)


async def finished(where: str, *streams: str) -> tuple[dict[str, bytes], Any]:
    """Return the output and the status of a client with these streams."""
    async with exec_client(where, *streams) as (client, ids):
        got = await client.collect()
    found = {name: got.get(number, b"") for name, number in ids.items()}
    return found, json.loads(found.pop("error"))


async def test_exec_url_executes_the_command(client: CriClient, container: str) -> None:
    where = await url(client, "Exec", container_id=container, cmd=["ver", "/?"], stdout=True)
    assert where.startswith("http://127.0.0.1:")
    found, status = await finished(where, "stdout")
    assert found == {"stdout": b"simulated: ver /?\r\n"}
    assert status["status"] == "Success"


async def test_attach_ends_when_the_container_exits(client: CriClient, container: str) -> None:
    where = await url(client, "Attach", container_id=container, stdin=True, stdout=True)
    async with exec_client(where, "stdin", "stdout") as (attached, ids):
        for _ in ids:
            await attached.until(frames.SynReply)
        await client.call("StopContainer", api.StopContainerRequest(container_id=container))
        got = await attached.collect()
    assert json.loads(got[ids["error"]])["status"] == "Success"


async def test_port_forward_reaches_a_port_of_the_pod(client: CriClient) -> None:
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
async def test_invalid_stream_combinations_are_rejected(
    client: CriClient, container: str, name: str
) -> None:
    more = {"cmd": ["ver"]} if name == "Exec" else {}
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    fields = {"container_id": container, **more}
    assert await refused(client, name, stdout=True, **more) == (
        invalid,
        "missing required container_id.",
    )
    status, sentence = await refused(client, name, **fields)
    assert (status, sentence) == (invalid, "one of stdin, stdout, or stderr must be set.")
    status, sentence = await refused(client, name, tty=True, stderr=True, **fields)
    assert status is invalid
    assert "tty and stderr cannot both be true" in sentence
    fields["container_id"] = "nobody"
    assert (await refused(client, name, stdout=True, **fields))[0] is grpc.StatusCode.NOT_FOUND


async def test_empty_command_is_rejected(client: CriClient, container: str) -> None:
    status, _ = await refused(client, "Exec", container_id=container, stdout=True)
    assert status is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["Exec", "Attach"])
async def test_exec_and_attach_require_a_running_container(
    client: CriClient, container: str, name: str
) -> None:
    more = {"cmd": ["ver"]} if name == "Exec" else {}
    fields = {"container_id": container, "stdout": True, **more}
    early = await url(client, name, **fields)
    await client.call("StopContainer", api.StopContainerRequest(container_id=container))
    status, sentence = await refused(client, name, **fields)
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert "CONTAINER_EXITED" in sentence
    assert "CONTAINER_EXITED" in (await finished(early, "stdout"))[1]["message"]


async def test_port_forward_requires_a_ready_sandbox(client: CriClient) -> None:
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
def test_urls_contain_a_reachable_host(addresses: list[str], host: str) -> None:
    assert advertised_host(addresses) == host

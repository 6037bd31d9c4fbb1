"""CRI server and client over a Unix socket."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import (
    IMAGE,
    RUNTIME,
    ConnectionLost,
    CriClient,
    RemoteError,
    add_service,
    function_name,
    new_server,
)
from winpod.errors import NotFound, Unavailable, WinpodError


class Runtime:
    async def version(self, request: api.VersionRequest) -> api.VersionResponse:
        return api.VersionResponse(version=request.version, runtime_name="test")

    async def container_status(self, request: api.ContainerStatusRequest) -> None:
        raise NotFound(f'there is no container "{request.container_id}".')

    async def remove_container(self, request: api.RemoveContainerRequest) -> None:
        raise WinpodError(
            f"{request.container_id} is used.",
            "Choose another name → 100% free.",
            reason="NameInUse",
        )

    async def stop_container(self, request: api.StopContainerRequest) -> None:
        raise RuntimeError(request.container_id)

    async def exec_sync(self, _: api.ExecSyncRequest) -> None:
        raise TimeoutError

    async def get_container_events(
        self, _: api.GetEventsRequest
    ) -> AsyncIterator[api.ContainerEventResponse]:
        for name in ("a", "b"):
            yield api.ContainerEventResponse(container_id=name)
        raise NotFound("no more.")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[CriClient]:
    server = new_server()
    add_service(server, RUNTIME, Runtime())
    target = f"unix:{tmp_path}/cri.sock"
    server.add_insecure_port(target)
    await server.start()
    client = CriClient(target)
    yield client
    await client.close()
    await server.stop(grace=None)


async def test_call_reaches_the_function_of_its_name(client: CriClient) -> None:
    answer = await client.call("Version", api.VersionRequest(version="0.1.0"))
    assert (answer.version, answer.runtime_name) == ("0.1.0", "test")


@pytest.mark.parametrize(
    ("name", "request_", "status", "sentence"),
    [
        (
            "ContainerStatus",
            api.ContainerStatusRequest(container_id="x"),
            "NOT_FOUND",
            'there is no container "x".',
        ),
        ("CheckpointContainer", api.CheckpointContainerRequest(), "UNIMPLEMENTED", "Checkpoint"),
        ("ExecSync", api.ExecSyncRequest(), "DEADLINE_EXCEEDED", "ExecSync timed out."),
        ("StopContainer", api.StopContainerRequest(container_id="boom"), "INTERNAL", "boom"),
    ],
)
async def test_errors_are_mapped_to_status_and_message(
    client: CriClient, name: str, request_: object, status: str, sentence: str
) -> None:
    with pytest.raises(RemoteError) as caught:
        await client.call(name, request_)  # type: ignore[arg-type]
    assert caught.value.status is grpc.StatusCode[status]
    assert sentence in str(caught.value)
    assert "Traceback" not in str(caught.value)


async def test_errors_carry_their_reason_and_hint(client: CriClient) -> None:
    with pytest.raises(RemoteError) as caught:
        await client.call("RemoveContainer", api.RemoveContainerRequest(container_id="x"))
    error = caught.value
    assert error.to_dict() == {
        "reason": "NameInUse",
        "message": "x is used.",
        "hint": "Choose another name → 100% free.",
    }


@pytest.mark.parametrize(
    ("name", "request_", "reason"),
    [
        ("ContainerStatus", api.ContainerStatusRequest(), "NotFound"),
        ("CheckpointContainer", api.CheckpointContainerRequest(), "Unimplemented"),
        ("ExecSync", api.ExecSyncRequest(), "CallTimedOut"),
        ("StopContainer", api.StopContainerRequest(), "InternalError"),
    ],
)
async def test_every_error_has_a_reason(
    client: CriClient, name: str, request_: object, reason: str
) -> None:
    with pytest.raises(RemoteError) as caught:
        await client.call(name, request_)  # type: ignore[arg-type]
    assert caught.value.reason == reason


async def test_too_large_requests_are_reported(client: CriClient) -> None:
    text = "x" * (17 * 1024 * 1024)
    with pytest.raises(RemoteError, match="larger than the limit of 16 MiB") as caught:
        await client.call("Version", api.VersionRequest(version=text))
    assert caught.value.reason == "MessageTooLarge"


async def test_stream_yields_messages_before_its_error(client: CriClient) -> None:
    events = client.stream("GetContainerEvents", api.GetEventsRequest())
    assert [(await anext(events)).container_id for _ in range(2)] == ["a", "b"]
    with pytest.raises(RemoteError, match="no more"):
        await anext(events)


async def test_large_messages_are_accepted(client: CriClient) -> None:
    text = "x" * (15 * 1024 * 1024)
    assert (await client.call("Version", api.VersionRequest(version=text))).version == text


async def test_unreachable_runtime_is_reported_with_a_hint(tmp_path: Path) -> None:
    client = CriClient(f"unix:{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable, match=r"does not answer\. Start it: winpod runtime\."):
        await client.call("Version", api.VersionRequest())
    await client.close()


def test_method_names_are_unique() -> None:
    names = [function_name(m.name) for s in (RUNTIME, IMAGE) for m in s.methods]
    assert len(names) == len(set(names)) == 43
    assert "run_pod_sandbox" in names


DIES = """
import asyncio, os, sys
from winpod.cri.rpc import RUNTIME, add_service, new_server

class Runtime:
    async def version(self, request):
        os.kill(os.getpid(), 9)

async def serve():
    server = new_server()
    add_service(server, RUNTIME, Runtime())
    server.add_insecure_port(sys.argv[1])
    await server.start()
    print("up", flush=True)
    await server.wait_for_termination()

asyncio.run(serve())
"""


async def test_runtime_that_dies_during_a_call_is_reported(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/cri.sock"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DIES, target), stdout=subprocess.PIPE
    )
    assert server.stdout
    assert await server.stdout.readline() == b"up\n"
    client = CriClient(target)
    with pytest.raises(ConnectionLost, match=r"to the runtime at unix:.*/cri\.sock was lost:"):
        await client.call("Version", api.VersionRequest())
    await client.close()
    await server.wait()

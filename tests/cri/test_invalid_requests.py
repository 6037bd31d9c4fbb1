"""Invalid requests: each gets a status and a message, and leaves nothing behind."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.support.cri_node import Node, client, create, image, node, run_sandbox, start, status
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import IMAGE, RUNTIME, CriClient, RemoteError

__all__ = ["client", "image", "node"]

ROUNDS = 6
DEPTH = 4
CANCELLED = 0.1
WORDS = (
    *("", "a", "../../x", "C:\\", "D:\\y", "\\\\.\\pipe\\x", "a\0b", "\n", "\U0001f600" * 900),
    *("y" * 70_000, "=", "sha256:" + "0" * 64, "::::", "10.0.0.1/99", "con", "S-1-5-18", "null"),
)
NUMBERS = {
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_BYTES: (b"", b"\xff", b"a\0b"),
    FieldDescriptor.TYPE_ENUM: (0, 1, 99, -5),
    FieldDescriptor.TYPE_INT32: (0, 1, -1, 65536, 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 1, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**64 - 1),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -1.0, float("nan")),
}
EXPECTED = {
    *("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "ALREADY_EXISTS"),
    *("UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "OK"),
}
METHODS = {m.name: m for service in (RUNTIME, IMAGE) for m in service.methods}
ASKED = [name for name in METHODS if name not in ("GetContainerEvents", "PullImage", "RemoveImage")]


def fill(message: Any, chance: random.Random, depth: int = 0) -> Any:
    """Generate a message with some fields set to odd values."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.5 or depth > DEPTH or field.name in ("log_directory", "timeout"):
            continue
        target = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                target[chance.choice(WORDS)] = chance.choice(WORDS)
        elif field.message_type:
            inner = target.add() if hasattr(target, "add") else target
            fill(inner, chance, depth + 1)
        else:
            value = chance.choice(NUMBERS.get(field.type, WORDS))
            if hasattr(target, "append"):
                target.append(value)
            else:
                setattr(message, field.name, value)
    return message


def aimed(message: Any, sandbox: str, container: str, image: str, chance: random.Random) -> None:
    """Generate IDs, mostly existing ones, to get past the first check."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, id_ in (("container_id", container), ("pod_sandbox_id", sandbox)):
        if name in fields and chance.random() < 0.7:
            setattr(message, name, id_)
    if isinstance(message, api.CreateContainerRequest):
        message.config.image.Clear()
        message.config.image.image = image
        message.config.windows.security_context.Clear()


async def answer(
    client: CriClient, name: str, request: Message, patience: float | None
) -> tuple[str, str]:
    """Return the status and message of a failed call."""
    try:
        async with asyncio.timeout(patience):
            if METHODS[name].server_streaming:
                async for _ in client.stream(name, request):
                    pass
            else:
                await client.call(name, request)
    except RemoteError as error:
        return error.status.name, str(error)
    except TimeoutError:
        return "CANCELLED", "the client went away."
    return "OK", ""


async def remove_all(client: CriClient) -> None:
    for pod in (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items:
        await client.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=pod.id))


@pytest.mark.parametrize("seed", [1, 2])
async def test_any_request_is_answered_and_leaves_nothing(
    client: CriClient, image: str, node: Node, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        await remove_all(client)
        sandbox = await run_sandbox(client)
        container = await create(client, sandbox, image)
        await start(client, container)
        calls = []
        for name in ASKED:
            request = fill(GetMessageClass(METHODS[name].input_type)(), chance)
            aimed(request, sandbox, container, image, chance)
            patience = 0.005 if chance.random() < CANCELLED else None
            calls.append(answer(client, name, request, patience))
        for name, (code, sentence) in zip(ASKED, await asyncio.gather(*calls), strict=True):
            assert code in EXPECTED, f"{name} {code}: {sentence}"
            assert code == "OK" or sentence.strip(), f"{name} {code}"
            assert "Error(" not in sentence, f"{name} {code}: {sentence}"
    await remove_all(client)
    left = await client.call("ListContainers", api.ListContainersRequest())
    assert not left.containers
    assert node.backend.describe()["containers"] == 0
    assert not node.networks.connected


async def test_long_error_messages_are_truncated(client: CriClient) -> None:
    for long_id in ("y" * 100_000, "\U0001f600" * 20_000):
        with pytest.raises(RemoteError, match=r" \.\.\. ") as caught:
            await status(client, long_id)
        assert caught.value.status == grpc.StatusCode.NOT_FOUND
        assert str(caught.value).endswith("not found.")


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(RemoteError) as caught:
        await call
    return caught.value.status, str(caught.value)


async def test_ambiguous_id_prefix_is_rejected(client: CriClient) -> None:
    ids = [await run_sandbox(client, f"pod-{number}") for number in range(17)]
    shared = next(i[0] for i in ids if sum(other[0] == i[0] for other in ids) > 1)
    request = api.RemovePodSandboxRequest(pod_sandbox_id=shared)
    code, sentence = await refused(client.call("RemovePodSandbox", request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "Write more of the ID" in sentence


async def test_invalid_protocol_is_reported(client: CriClient, node: Node) -> None:
    mapping = api.PortMapping(container_port=80)
    mapping.protocol = 99  # type: ignore[assignment]
    code, sentence = await refused(run_sandbox(client, port_mappings=[mapping]))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert 'The protocol "99" of port 80' in sentence
    await run_sandbox(client)
    assert len(node.networks.connected) == 1


LOGS: dict[str, tuple[Callable[[Path], str], grpc.StatusCode]] = {
    "a file": (lambda there: f"{there.name}/0.log", grpc.StatusCode.FAILED_PRECONDITION),
    "too long": (lambda _: "x" * 300, grpc.StatusCode.FAILED_PRECONDITION),
    "no path": (lambda _: "a\0b", grpc.StatusCode.INVALID_ARGUMENT),
}


@pytest.mark.parametrize("kind", LOGS)
async def test_unwritable_log_is_reported(
    client: CriClient, image: str, tmp_path: Path, kind: str
) -> None:
    there = tmp_path / "file"
    there.touch()
    path, code = LOGS[kind]

    async def made_and_started() -> None:
        sandbox = await run_sandbox(client, log_directory=str(tmp_path))
        await start(client, await create(client, sandbox, image, log_path=path(there)))

    found, sentence = await refused(made_and_started())
    assert (found, str(tmp_path) in sentence) == (code, True)


async def test_log_path_is_inside_the_log_directory(
    client: CriClient, image: str, tmp_path: Path
) -> None:
    sandbox = await run_sandbox(client, log_directory=str(tmp_path / "logs"))
    container = await create(client, sandbox, image, log_path="/app/0.log")
    assert (await status(client, container)).log_path == str(tmp_path / "logs/app/0.log")

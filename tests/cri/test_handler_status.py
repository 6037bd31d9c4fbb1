"""Advertised and rejected handlers of a runtime with hypervisor isolation."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cri_node import Node, run_sandbox
from tests.support.guest_backend import GuestBackend
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.field_reader import Field
from winpod.windows.handlers import (
    BUILTIN_HANDLERS,
    HYPERVISOR_HANDLER,
    VM_PHYSICALLY_BACKED,
    VM_PROCESSOR_COUNT,
)

RESERVE = f"{HYPERVISOR_HANDLER.name}-reserve"
SIZED = {
    RESERVE: {
        "isolation": "hypervisor",
        "annotations": {VM_PROCESSOR_COUNT: "2", VM_PHYSICALLY_BACKED: "true"},
    }
}


def running(root: Path, backend: GuestBackend) -> AbstractAsyncContextManager[CriClient]:
    handlers = BUILTIN_HANDLERS.with_configuration(Field(SIZED))
    return Node(root, backend, handlers, Accelerator.EMULATION).running()


async def advertised(client: CriClient) -> tuple[set[str], dict[str, Any]]:
    status = await client.call("Status", api.StatusRequest(verbose=True))
    names = {handler.name for handler in status.runtime_handlers}
    return names, json.loads(status.info["hypervisor"])


async def accelerator(client: CriClient, sandbox: str) -> str | None:
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
    answer = await client.call("PodSandboxStatus", request)
    found: str | None = json.loads(answer.info["info"])["accelerator"]
    return found


async def test_unavailable_handlers_are_not_advertised(
    tmp_path: Path,
) -> None:
    backend = GuestBackend("there is no kit.")
    async with running(tmp_path, backend) as client:
        names, hypervisor = await advertised(client)
        assert names == {"", "runhcs-wcow-process"}
        assert hypervisor == {"accelerator": None, "trouble": "there is no kit."}
        with pytest.raises(RemoteError, match="hypervisor isolation: there is no kit"):
            await run_sandbox(client, handler=HYPERVISOR_HANDLER.name)
        backend.missing = ""
        names, hypervisor = await advertised(client)
        assert {HYPERVISOR_HANDLER.name, f"{HYPERVISOR_HANDLER.name}-17763", RESERVE} <= names
        assert f"{HYPERVISOR_HANDLER.name}-26100" not in names
        assert hypervisor == {"accelerator": "emulation", "trouble": None}
        with pytest.raises(RemoteError, match=r"26100 cannot run on the older .*20348"):
            await run_sandbox(client, handler=f"{HYPERVISOR_HANDLER.name}-26100")


async def test_accelerator_is_reported_after_a_restart(tmp_path: Path) -> None:
    backend = GuestBackend()
    async with running(tmp_path, backend) as client:
        guest = await run_sandbox(client, "guest", HYPERVISOR_HANDLER.name)
        beside = await run_sandbox(client, "beside")
    async with running(tmp_path, backend) as client:
        assert await accelerator(client, guest) == "emulation"
        assert await accelerator(client, beside) is None


async def test_pod_annotations_override_handler_annotations(
    tmp_path: Path,
) -> None:
    backend = GuestBackend()
    async with running(tmp_path, backend) as client:
        sandbox = await run_sandbox(client, "web", RESERVE, annotations={VM_PROCESSOR_COUNT: "1"})
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        status = (await client.call("PodSandboxStatus", request)).status
    assert backend.specs[0].annotations == {VM_PROCESSOR_COUNT: "1", VM_PHYSICALLY_BACKED: "true"}
    assert dict(status.annotations) == {VM_PROCESSOR_COUNT: "1"}

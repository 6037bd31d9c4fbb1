"""What a runtime whose pods may have microVMs advertises, refuses and tells."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cri.test_life import Node, run_sandbox
from winpod.compute.backend import SandboxAsked
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.simulated import SimulatedBackend
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.windows.guest_sizes import BACKED, PROCESSORS
from winpod.windows.handlers import HYPERVISOR, KNOWN
from winpod.windows.isolation import Isolation
from winpod.windows.reading import At

RESERVE = f"{HYPERVISOR.name}-reserve"
SIZED = {RESERVE: {"isolation": "hypervisor", "annotations": {PROCESSORS: "2", BACKED: "true"}}}


class GuestBackend(SimulatedBackend):
    """A simulation that takes pods of either isolation, and remembers what they asked."""

    def __init__(self, missing: str = "") -> None:
        super().__init__()
        self.missing = missing
        self.asked: list[SandboxAsked] = []

    def trouble(self, isolation: Isolation = Isolation.PROCESS) -> str:
        return self.missing if isolation is Isolation.HYPERVISOR else ""

    async def make_sandbox(self, asked: SandboxAsked) -> Path | None:
        self.asked.append(asked)
        return await super().make_sandbox(asked)


def running(root: Path, backend: GuestBackend) -> AbstractAsyncContextManager[Client]:
    handlers = KNOWN.configured(At(SIZED))
    return Node(root, backend, handlers, Accelerator.EMULATION).running()


async def told(client: Client) -> tuple[set[str], dict[str, Any]]:
    status = await client.call("Status", api.StatusRequest(verbose=True))
    names = {handler.name for handler in status.runtime_handlers}
    return names, json.loads(status.info["hypervisor"])


async def accelerator(client: Client, sandbox: str) -> str | None:
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
    answer = await client.call("PodSandboxStatus", request)
    found: str | None = json.loads(answer.info["info"])["accelerator"]
    return found


async def test_handlers_are_told_while_they_can_start_and_the_reason_while_not(
    tmp_path: Path,
) -> None:
    backend = GuestBackend("there is no kit.")
    async with running(tmp_path, backend) as client:
        names, hypervisor = await told(client)
        assert names == {"", "runhcs-wcow-process"}
        assert hypervisor == {"accelerator": None, "trouble": "there is no kit."}
        with pytest.raises(RemoteError, match="hypervisor isolation: there is no kit"):
            await run_sandbox(client, handler=HYPERVISOR.name)
        backend.missing = ""
        names, hypervisor = await told(client)
        assert {HYPERVISOR.name, f"{HYPERVISOR.name}-17763", RESERVE} <= names
        assert f"{HYPERVISOR.name}-26100" not in names
        assert hypervisor == {"accelerator": "emulation", "trouble": None}
        with pytest.raises(RemoteError, match=r"26100 cannot run on the older .*20348"):
            await run_sandbox(client, handler=f"{HYPERVISOR.name}-26100")


async def test_a_pod_tells_what_runs_it_also_after_a_restart(tmp_path: Path) -> None:
    backend = GuestBackend()
    async with running(tmp_path, backend) as client:
        guest = await run_sandbox(client, "guest", HYPERVISOR.name)
        beside = await run_sandbox(client, "beside")
    async with running(tmp_path, backend) as client:
        assert await accelerator(client, guest) == "emulation"
        assert await accelerator(client, beside) is None


async def test_what_a_pod_says_of_its_size_goes_before_what_its_handler_says(
    tmp_path: Path,
) -> None:
    backend = GuestBackend()
    async with running(tmp_path, backend) as client:
        sandbox = await run_sandbox(client, "web", RESERVE, annotations={PROCESSORS: "1"})
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        status = (await client.call("PodSandboxStatus", request)).status
    assert backend.asked[0].annotations == {PROCESSORS: "1", BACKED: "true"}
    assert dict(status.annotations) == {PROCESSORS: "1"}

"""Reconciler of one instance: timeouts, and continuation after an operator crash."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.instance_operator import FixedDesiredState, OperatorHarness
from tests.support.scripted_windows import ScriptedWindows
from tests.support.ssh_server import SshServer, ssh_server
from winpod.errors import WinpodError
from winpod.instances.cluster.nodes import NODES
from winpod.instances.operator.actions import DrainTimeout, NodeJoinTimeout, reported_software
from winpod.instances.operator.observe import Observation
from winpod.instances.operator.reconciler import InstanceReconciler
from winpod.instances.planner.desired import DesiredState, inline_file
from winpod.instances.planner.state import InstanceState
from winpod.instances.planner.steps import Step, StepKind
from winpod.instances.ssh.authorized_keys import SshKeys
from winpod.k8s.client import ApiError
from winpod.windows.builds import Build

DESIRED = DesiredState(
    "1.1.0",
    directories=(r"C:\k", r"C:\k\bin"),
    files=(inline_file(r"C:\k\bin\kubelet.exe", b"kubelet", ("kubelet",)),),
)
READY = [
    {
        "type": "NodeReady",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-11-17T00:00:00Z",
    }
]
PUT = Step(StepKind.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")


def observation(*steps: Step) -> Observation:
    state = InstanceState(Build(10, 0, 20348), "", "win-a", "1", version="1.1.0")
    return Observation(state, DesiredState("1.1.0"), steps, "", time.monotonic())


@asynccontextmanager
async def windows(folder: Path, harness: OperatorHarness) -> AsyncIterator[SshServer]:
    """Serve the host of the Node win-a."""
    machine = ScriptedWindows(folder, hostname="WIN-A", next_hostname="WIN-A")
    async with ssh_server(folder, machine.reply) as server:
        harness.inputs.keys = SshKeys(server.key)
        yield server


@pytest.mark.parametrize(
    ("error", "node", "configured"),
    [
        (DrainTimeout("a", "win-a", 4, "pod shop/web: no"), "True", "False"),
        (NodeJoinTimeout("a", 4, "its Node win-a is not ready"), "Unknown", None),
    ],
)
async def test_drain_timeout_does_not_change_node_condition_but_join_timeout_does(
    error: WinpodError, node: str, configured: str | None
) -> None:
    harness = OperatorHarness()
    one = await harness.instance("a", node="win-a", nodeUid="1", conditions=READY)
    await InstanceReconciler("a", harness.context)._failed(one, error)
    conditions = {each["type"]: each for each in harness.status("a")["conditions"]}
    assert conditions["NodeReady"]["status"] == node
    assert conditions.get("Configured", {}).get("status") == configured
    assert str(error) in [each["message"] for each in conditions.values()]
    assert harness.status("a")["failure"] == str(error)
    assert [(event.kind, event.message) for event in harness.events] == [("Warning", str(error))]


async def test_change_of_another_operator_ends_with_a_new_heartbeat(
    tmp_path: Path,
) -> None:
    """The last heartbeat that the other operator knew is lost."""
    harness = OperatorHarness(desired_source=FixedDesiredState(DESIRED))
    await harness.node("win-a", heartbeat="2026-11-17T00:00:30Z", cordoned=True)
    after = InstanceReconciler("a", harness.context)

    async def advance() -> None:
        one = harness.context.objects.get_copy("a")
        assert one
        await after._advance(one)

    async with windows(tmp_path, harness) as server:
        kubelet = server.local(r"C:\k\bin\kubelet.exe")
        kubelet.parent.mkdir(parents=True)
        kubelet.write_bytes(b"kubelet")
        await harness.instance(
            "a",
            address="127.0.0.1",
            port=server.port,
            node="win-a",
            nodeUid=f"{NODES}/win-a",
            phase="Changing",
            changingSince="2026-11-17T00:00:00Z",
            isCordoned=True,
        )
        await advance()
        await advance()
        assert harness.status("a")["phase"] == "Joining"
        assert harness.status("a")["isCordoned"]
        await harness.heartbeat("win-a", "2026-11-17T00:00:40Z")
        await advance()
        await advance()
        assert harness.status("a")["phase"] == "Ready"
        assert not {"changingSince", "isCordoned"} & harness.status("a").keys()
        await advance()
        assert harness.status("a")["phase"] == "Ready"


async def test_drain_of_another_operator_continues_on_a_ready_node() -> None:
    """Nothing was stopped yet, so any heartbeat counts."""
    harness = OperatorHarness()
    await harness.node("win-a", heartbeat="2026-11-17T00:00:30Z", cordoned=True)
    one = await harness.instance("a", node="win-a", changingSince="2026-11-17T00:00:00Z")
    assert (
        await InstanceReconciler("a", harness.context)._runner.heartbeat(one, observation(PUT))
        == ""
    )


@pytest.mark.parametrize(
    ("path", "action"),
    [
        (f"{NODES}/win-a", "observe it and its Node"),
        ("/api/v1/namespaces/shop/pods/web/eviction", "drain"),
    ],
)
async def test_api_error_names_the_action(path: str, action: str, tmp_path: Path) -> None:
    harness = OperatorHarness(desired_source=FixedDesiredState(DESIRED))
    await harness.node("win-a", heartbeat="1", cordoned=True)
    await harness.api.put("/api/v1/pods/web", {"metadata": {"namespace": "shop"}})
    harness.api.refuse(path, ApiError(403, "Forbidden", "the API server refused: you may not."))
    async with windows(tmp_path, harness) as server:
        one = await harness.instance(
            "a",
            address="127.0.0.1",
            port=server.port,
            node="win-a",
            nodeUid=f"{NODES}/win-a",
            changingSince="2026-11-17T00:00:00Z",
            isCordoned=True,
        )
        with pytest.raises(ApiError) as caught:
            await InstanceReconciler("a", harness.context)._advance(one)
    assert caught.value.message == (
        f"a: could not {action}: expected the API server to allow it, found that the API server "
        "refused: you may not."
    )
    assert caught.value.hint


def test_reported_software_names_the_version() -> None:
    desired = DesiredState("1.1.0")
    state = observation().state
    assert reported_software(desired, state) == "version 1.1.0 is installed"
    for before in ("", "1.0.0"):
        waits = InstanceState(Build(10, 0, 20348), "", "win-a", "1", version=before)
        message = reported_software(desired, waits)
        assert message.startswith("version 1.1.0 is installed except for its network, which waits")

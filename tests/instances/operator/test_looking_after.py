"""One instance looked after: what is told of lateness, and what a killed operator leaves behind."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.instances.operator.caring import AlwaysWanted, Caring
from tests.instances.scripted_windows import ScriptedWindows
from tests.instances.ssh_server import SshServer, ssh_server
from winpod.instances.cluster.nodes import NODES
from winpod.instances.operator.deeds import DrainLate, NodeLate, what_is_on_it
from winpod.instances.operator.looking import Seen
from winpod.instances.operator.looking_after import LookingAfter
from winpod.instances.remote.keys import Keys
from winpod.instances.rules.desired import Desired, written
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Do, Step
from winpod.node.api import Refused
from winpod.windows.builds import Build
from winpod.windows.errors import WinpodError

DESIRED = Desired(
    "1.1.0",
    directories=(r"C:\k", r"C:\k\bin"),
    files=(written(r"C:\k\bin\kubelet.exe", b"kubelet", ("kubelet",)),),
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
PUT = Step(Do.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")


def seen(*steps: Step) -> Seen:
    state = State(Build(10, 0, 20348), "", "win-a", "1", version="1.1.0")
    return Seen(state, Desired("1.1.0"), steps, "", time.monotonic())


@asynccontextmanager
async def windows(folder: Path, caring: Caring) -> AsyncIterator[SshServer]:
    """The host of the Node win-a, which can be reached."""
    machine = ScriptedWindows(folder, hostname="WIN-A", next_hostname="WIN-A")
    async with ssh_server(folder, machine.reply) as server:
        caring.inputs.keys = Keys(server.key)
        yield server


@pytest.mark.parametrize(
    ("error", "node", "configured"),
    [
        (DrainLate("a", "win-a", 4, "pod shop/web: no"), "True", "False"),
        (NodeLate("a", 4, "its Node win-a is not ready"), "Unknown", None),
    ],
)
async def test_a_drain_that_is_late_says_nothing_of_the_node_and_a_node_that_is_late_does(
    error: WinpodError, node: str, configured: str | None
) -> None:
    caring = Caring()
    one = await caring.instance("a", node="win-a", nodeUid="1", conditions=READY)
    await LookingAfter("a", caring.care)._failed(one, error)
    told = {each["type"]: each for each in caring.status("a")["conditions"]}
    assert told["NodeReady"]["status"] == node
    assert told.get("Configured", {}).get("status") == configured
    assert str(error) in [each["message"] for each in told.values()]
    assert caring.status("a")["failure"] == str(error)
    assert [(event.kind, event.message) for event in caring.events] == [("Warning", str(error))]


async def test_a_change_that_another_operator_made_ends_once_its_kubelet_is_heard_of_again(
    tmp_path: Path,
) -> None:
    """What that one knew of the kubelet's last sign of life died with it."""
    caring = Caring(wanted=AlwaysWanted(DESIRED))
    await caring.node("win-a", beat="2026-11-17T00:00:30Z", cordoned=True)
    after = LookingAfter("a", caring.care)

    async def advance() -> None:
        one = caring.care.objects.copy_of("a")
        assert one
        await after._advance(one)

    async with windows(tmp_path, caring) as server:
        kubelet = server.local(r"C:\k\bin\kubelet.exe")
        kubelet.parent.mkdir(parents=True)
        kubelet.write_bytes(b"kubelet")
        await caring.instance(
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
        assert caring.status("a")["phase"] == "Joining"
        assert caring.status("a")["isCordoned"]
        await caring.beat("win-a", "2026-11-17T00:00:40Z")
        await advance()
        await advance()
        assert caring.status("a")["phase"] == "Ready"
        assert not {"changingSince", "isCordoned"} & caring.status("a").keys()
        await advance()
        assert caring.status("a")["phase"] == "Ready"


async def test_a_drain_that_another_operator_began_waits_for_pods_of_a_node_that_is_ready() -> None:
    """Nothing was stopped yet, so any sign of life is as good as another."""
    caring = Caring()
    await caring.node("win-a", beat="2026-11-17T00:00:30Z", cordoned=True)
    one = await caring.instance("a", node="win-a", changingSince="2026-11-17T00:00:00Z")
    assert await LookingAfter("a", caring.care)._deeds.beat(one, seen(PUT)) == ""


@pytest.mark.parametrize(
    ("path", "to_do"),
    [
        (f"{NODES}/win-a", "look at it and at its Node"),
        ("/api/v1/namespaces/shop/pods/web/eviction", "drain"),
    ],
)
async def test_what_the_api_server_refuses_is_told_with_what_was_to_be_done(
    path: str, to_do: str, tmp_path: Path
) -> None:
    caring = Caring(wanted=AlwaysWanted(DESIRED))
    await caring.node("win-a", beat="1", cordoned=True)
    await caring.api.put("/api/v1/pods/web", {"metadata": {"namespace": "shop"}})
    caring.api.refuse(path, Refused(403, "Forbidden", "the API server refused: you may not."))
    async with windows(tmp_path, caring) as server:
        one = await caring.instance(
            "a",
            address="127.0.0.1",
            port=server.port,
            node="win-a",
            nodeUid=f"{NODES}/win-a",
            changingSince="2026-11-17T00:00:00Z",
            isCordoned=True,
        )
        with pytest.raises(Refused) as caught:
            await LookingAfter("a", caring.care)._advance(one)
    assert caught.value.sentence == (
        f"a: could not {to_do}: expected the API server to allow it, found that the API server "
        "refused: you may not."
    )
    assert caught.value.advice


def test_what_is_on_an_instance_is_said_with_the_version_that_it_is() -> None:
    desired = Desired("1.1.0")
    state = seen().state
    assert what_is_on_it(desired, state) == "all of version 1.1.0 is on it"
    for before in ("", "1.0.0"):
        waits = State(Build(10, 0, 20348), "", "win-a", "1", version=before)
        said = what_is_on_it(desired, waits)
        assert said.startswith("all of version 1.1.0 is on it but its network, which waits")

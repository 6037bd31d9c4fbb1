"""What the page is told: bounded, in order, and to whom."""

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from winpod.cluster.admission.deciding import Fate
from winpod.cluster.custom_resources import Metadata
from winpod.cluster.page.gates import LoopbackGate
from winpod.cluster.page.state import (
    MOST_NAMES,
    MOST_PODS,
    RefusedPod,
    class_rows,
    node_groups,
    pod_rows,
    refused_rows,
    upgrade_rows,
)
from winpod.cluster.pod_verdicts import PodVerdict
from winpod.cluster.seen import SeenClass, SeenNode, SeenPod
from winpod.cluster.upgrade.resource import (
    Status,
    StepRecord,
    WindowsUpgrade,
    WorkloadRecord,
)
from winpod.windows.objects import BUILD_LABEL, OS_LABEL, Container, Node, Pod, RuntimeClass

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
WINDOWS = ((OS_LABEL, "windows"), (BUILD_LABEL, "10.0.20348"))
TEMPLATE = Pod((Container("app", "app:1", ()),))


def node(number: int, **more: bool) -> SeenNode:
    named = Node(f"win-{number:02}", WINDOWS, unschedulable=more.pop("cordoned", False))
    return SeenNode(named, is_ready=more.pop("ready", True))


def pods(count: int, fate: Fate) -> dict[SeenPod, PodVerdict]:
    names = (f"{fate}-{number:04}" for number in range(count))
    made = (SeenPod("shop", n, n, "", "Pending", False, ("", ""), TEMPLATE) for n in names)
    return dict.fromkeys(made, PodVerdict(fate))


def test_nodes_that_are_alike_are_one_row_however_many() -> None:
    many = [node(number) for number in range(40)]
    (group,) = node_groups([*many, node(40, ready=False), node(41, cordoned=True)])
    assert (group["count"], group["ready"], group["cordoned"]) == (42, 41, 1)
    assert group["release"] == "Windows Server 2022"
    assert len(group["names"]) == MOST_NAMES


def test_windows_comes_before_other_systems() -> None:
    linux = SeenNode(Node("a", ((OS_LABEL, "linux"),), kernel_version="6.1.0"))
    groups = node_groups([linux, node(1)])
    assert [group["os"] for group in groups] == ["windows", "linux"]
    assert groups[1]["build"] == ""


def test_a_class_tells_whose_it_is_who_uses_it_and_how_many_nodes_it_reaches() -> None:
    made = RuntimeClass("windows-2022", "runhcs-wcow-process", ((BUILD_LABEL, "10.0.20348"),))
    foreign = RuntimeClass("gvisor", "runsc", (("sandbox", "yes"),))
    classes = [SeenClass(made, is_ours=True, retiring="until June"), SeenClass(foreign)]
    rows = class_rows(classes, {"windows-2022": 3, "gvisor": 0}.__getitem__, [node(1), node(2)])
    told = {row["name"]: (row["ours"], row["users"], row["nodes"], row["retiring"]) for row in rows}
    assert told == {"windows-2022": (True, 3, 2, "until June"), "gvisor": (False, 0, 0, "")}


def test_of_many_pods_those_come_first_that_need_somebody() -> None:
    found = pods(MOST_PODS, Fate.RUNS) | pods(3, Fate.CANNOT_RUN) | pods(2, Fate.NOT_WINDOWS)
    verdicts = {(pod.namespace, pod.name): verdict for pod, verdict in found.items()}
    told = pod_rows(found, verdicts)
    assert told["counts"] == {"cannot-run": 3, "runs": MOST_PODS, "not-windows": 2}
    assert told["matching"] == MOST_PODS + 3
    assert len(told["shown"]) == MOST_PODS
    assert [row["fate"] for row in told["shown"][:4]] == ["cannot-run"] * 3 + ["runs"]
    last = f"SHOP/runs-{MOST_PODS - 1:04}"
    assert pod_rows(found, verdicts, last)["matching"] == 1


def test_a_refusal_that_two_tell_of_is_one_and_the_newest_are_first() -> None:
    once = RefusedPod(NOON, "shop", "web-", "no node")
    again = RefusedPod(NOON + timedelta(seconds=1), "shop", "web", "no node", 4)
    other = RefusedPod(NOON - timedelta(hours=1), "shop", "old", "no node")
    rows = refused_rows([other, once, again])
    assert [(row["name"], row["count"]) for row in rows] == [("web", 4), ("old", 1)]
    assert rows[0]["at"] == "2026-06-01T12:00:01Z"


@pytest.mark.parametrize("host", ["localhost", "localhost:8081", "127.0.0.1:9", "[::1]:8081"])
async def test_who_asks_for_this_machine_is_shown_the_page(host: str) -> None:
    await LoopbackGate().admit(make_mocked_request("GET", "/api/state", {"Host": host}))


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "10.0.0.1:8081"])
async def test_a_page_of_somebody_else_cannot_ask_through_a_browser(host: str) -> None:
    with pytest.raises(web.HTTPForbidden):
        await LoopbackGate().admit(make_mocked_request("GET", "/api/state", {"Host": host}))


def upgrade(*states: str, name: str = "u", staying: int = 0) -> WindowsUpgrade:
    steps = [StepRecord("drain", f"n{i}", state) for i, state in enumerate(states)]
    left = [WorkloadRecord("Deployment", "shop", f"w{i}", stays=True) for i in range(staying)]
    made = Status("Running", steps=steps, workloads=left)
    return WindowsUpgrade(Metadata(name, creation_timestamp=name), {}, made)


@pytest.mark.parametrize(
    ("done", "waiting", "earlier", "later"),
    [(0, 0, 0, 0), (3, 4, 0, 0), (0, 1000, 0, 950), (500, 500, 490, 460), (1000, 0, 950, 0)],
)
def test_of_many_steps_those_around_the_present_one_are_shown(
    done: int, waiting: int, earlier: int, later: int
) -> None:
    steps = ("Done",) * done + ("Pending",) * waiting
    (row,) = upgrade_rows([upgrade(*steps)])["shown"]
    assert (row["earlier"], row["later"]) == (earlier, later)
    assert (row["done"], row["total"]) == (done, len(steps))
    targets = [step["target"] for step in row["steps"]]
    assert targets == [f"n{i}" for i in range(earlier, len(steps) - later)]


def test_of_many_upgrades_the_newest_are_shown_and_the_rest_are_counted() -> None:
    rows = upgrade_rows([upgrade("Done", name=f"{i:02}", staying=60) for i in range(13)])
    assert [row["name"] for row in rows["shown"]] == [f"{i:02}" for i in range(12, 2, -1)]
    assert rows["more"] == 3
    assert (len(rows["shown"][0]["staying"]), rows["shown"][0]["more_staying"]) == (50, 10)

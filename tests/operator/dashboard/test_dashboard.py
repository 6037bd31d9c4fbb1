"""Tests of the dashboard's state and authorization."""

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from winpod.k8s.objects import ObjectMeta
from winpod.labels import BUILD_LABEL, OS_LABEL
from winpod.operator.admission.review import ReviewOutcome
from winpod.operator.cached_objects import CachedNode, CachedPod, CachedRuntimeClass
from winpod.operator.dashboard.dashboard import LoopbackAuthorizer
from winpod.operator.dashboard.state import (
    MAX_NAMES,
    MAX_PODS,
    RefusedPod,
    class_rows,
    node_groups,
    pod_rows,
    refused_rows,
    upgrade_rows,
)
from winpod.operator.pod_evaluator import PodVerdict
from winpod.operator.upgrade.resource import (
    StepRecord,
    UpgradeStatus,
    WindowsUpgrade,
    WorkloadRecord,
)
from winpod.placement.model import Container, Node, Pod, RuntimeClass

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
WINDOWS = ((OS_LABEL, "windows"), (BUILD_LABEL, "10.0.20348"))
TEMPLATE = Pod((Container("app", "app:1", ()),))


def node(number: int, **more: bool) -> CachedNode:
    named = Node(f"win-{number:02}", WINDOWS, unschedulable=more.pop("cordoned", False))
    return CachedNode(named, is_ready=more.pop("ready", True))


def pods(count: int, fate: ReviewOutcome) -> dict[CachedPod, PodVerdict]:
    names = (f"{fate}-{number:04}" for number in range(count))
    made = (CachedPod("shop", n, n, "", "Pending", False, ("", ""), TEMPLATE) for n in names)
    return dict.fromkeys(made, PodVerdict(fate))


def test_equal_nodes_are_one_row() -> None:
    many = [node(number) for number in range(40)]
    (group,) = node_groups([*many, node(40, ready=False), node(41, cordoned=True)])
    assert (group["count"], group["ready"], group["cordoned"]) == (42, 41, 1)
    assert group["release"] == "Windows Server 2022"
    assert len(group["names"]) == MAX_NAMES


def test_windows_comes_before_other_systems() -> None:
    linux = CachedNode(Node("a", ((OS_LABEL, "linux"),), kernel_version="6.1.0"))
    groups = node_groups([linux, node(1)])
    assert [group["os"] for group in groups] == ["windows", "linux"]
    assert groups[1]["build"] == ""


def test_class_row_has_manager_users_and_nodes() -> None:
    made = RuntimeClass("windows-2022", "runhcs-wcow-process", ((BUILD_LABEL, "10.0.20348"),))
    foreign = RuntimeClass("gvisor", "runsc", (("sandbox", "yes"),))
    classes = [
        CachedRuntimeClass(made, is_managed=True, retiring="until June"),
        CachedRuntimeClass(foreign),
    ]
    rows = class_rows(classes, {"windows-2022": 3, "gvisor": 0}.__getitem__, [node(1), node(2)])
    rows_shown = {
        row["name"]: (row["ours"], row["users"], row["nodes"], row["retiring"]) for row in rows
    }
    assert rows_shown == {"windows-2022": (True, 3, 2, "until June"), "gvisor": (False, 0, 0, "")}


def test_pods_that_need_attention_come_first() -> None:
    found = (
        pods(MAX_PODS, ReviewOutcome.RUNS)
        | pods(3, ReviewOutcome.CANNOT_RUN)
        | pods(2, ReviewOutcome.NOT_WINDOWS)
    )
    verdicts = {(pod.namespace, pod.name): verdict for pod, verdict in found.items()}
    rows_shown = pod_rows(found, verdicts)
    assert rows_shown["counts"] == {"cannot-run": 3, "runs": MAX_PODS, "not-windows": 2}
    assert rows_shown["matching"] == MAX_PODS + 3
    assert len(rows_shown["shown"]) == MAX_PODS
    assert [row["fate"] for row in rows_shown["shown"][:4]] == ["cannot-run"] * 3 + ["runs"]
    last = f"SHOP/runs-{MAX_PODS - 1:04}"
    assert pod_rows(found, verdicts, last)["matching"] == 1


def test_rejections_are_deduplicated_newest_first() -> None:
    once = RefusedPod(NOON, "shop", "web-", "no node")
    again = RefusedPod(NOON + timedelta(seconds=1), "shop", "web", "no node", 4)
    other = RefusedPod(NOON - timedelta(hours=1), "shop", "old", "no node")
    rows = refused_rows([other, once, again])
    assert [(row["name"], row["count"]) for row in rows] == [("web", 4), ("old", 1)]
    assert rows[0]["at"] == "2026-06-01T12:00:01Z"


@pytest.mark.parametrize("host", ["localhost", "localhost:8081", "127.0.0.1:9", "[::1]:8081"])
async def test_loopback_host_is_allowed(host: str) -> None:
    await LoopbackAuthorizer().authorize(make_mocked_request("GET", "/api/state", {"Host": host}))


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "10.0.0.1:8081"])
async def test_foreign_host_header_is_forbidden(host: str) -> None:
    with pytest.raises(web.HTTPForbidden):
        await LoopbackAuthorizer().authorize(
            make_mocked_request("GET", "/api/state", {"Host": host})
        )


def upgrade(*states: str, name: str = "u", staying: int = 0) -> WindowsUpgrade:
    steps = [StepRecord("drain", f"n{i}", state) for i, state in enumerate(states)]
    left = [WorkloadRecord("Deployment", "shop", f"w{i}", stays=True) for i in range(staying)]
    made = UpgradeStatus("Running", steps=steps, workloads=left)
    return WindowsUpgrade(ObjectMeta(name, creation_timestamp=name), {}, made)


@pytest.mark.parametrize(
    ("done", "waiting", "earlier", "later"),
    [(0, 0, 0, 0), (3, 4, 0, 0), (0, 1000, 0, 950), (500, 500, 490, 460), (1000, 0, 950, 0)],
)
def test_steps_around_the_current_one_are_shown(
    done: int, waiting: int, earlier: int, later: int
) -> None:
    steps = ("Done",) * done + ("Pending",) * waiting
    (row,) = upgrade_rows([upgrade(*steps)])["shown"]
    assert (row["earlier"], row["later"]) == (earlier, later)
    assert (row["done"], row["total"]) == (done, len(steps))
    targets = [step["target"] for step in row["steps"]]
    assert targets == [f"n{i}" for i in range(earlier, len(steps) - later)]


def test_newest_upgrades_are_shown_and_others_counted() -> None:
    rows = upgrade_rows([upgrade("Done", name=f"{i:02}", staying=60) for i in range(13)])
    assert [row["name"] for row in rows["shown"]] == [f"{i:02}" for i in range(12, 2, -1)]
    assert rows["more"] == 3
    assert (len(rows["shown"][0]["staying"]), rows["shown"][0]["more_staying"]) == (50, 10)

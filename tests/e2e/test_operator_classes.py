"""`winpod operator` on a real API server: classes and labels from nodes, leader election."""

import asyncio
import platform
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.node_process import NodeProcess, events_of, is_ready, node
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    BUILD_2025,
    HYPERVISOR,
    PROCESS,
    TAINT,
    add_nodes,
    linux_node,
    pod,
    runtime_class,
    windows_labels,
    windows_node,
)
from tests.support.e2e.operator_process import (
    NAMESPACE,
    OperatorProcess,
    classes,
    configure,
    leader,
    lease,
)
from tests.support.e2e.waiting import eventually

from winpod.check.live_cluster import read_live_cluster
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.leader_election import LEASE_SECONDS
from winpod.operator.cluster_cache import CachedKind, ClusterCache

GUEST_2019 = f"{HYPERVISOR}-17763"
SETTINGS = "classes: {removeAfterSeconds: 0}"
MANAGED = {"app.kubernetes.io/managed-by": "winpod"}
PATIENCE = 300.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate cluster, since an operator manages all of its nodes."""
    directory = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory, scheduler=False, controller_manager=False) as running:
        running.create_namespace(NAMESPACE)
        running.create_namespace("apps")
        configure(running, SETTINGS)
        yield running


@pytest.fixture(scope="module")
def operator(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator"), "one") as process:
        yield process


@pytest.fixture(autouse=True)
def _clean_up(plane: ControlPlane) -> Iterator[None]:
    yield
    configure(plane, SETTINGS)
    options = ("--all", "--force", "--grace-period=0")
    plane.kubectl("delete", "pods", "-n", "apps", *options)
    plane.kubectl("delete", "nodes", "--all")
    plane.kubectl("delete", "runtimeclasses", "--all")


def pod_using(name: str, runtime_class: str) -> dict[str, Any]:
    spec = {"runtimeClassName": runtime_class, "containers": [{"name": "main", "image": "app"}]}
    return pod(name, "apps", spec)


def reasons(plane: ControlPlane, namespace: str, name: str) -> list[str]:
    return [reason for reason, _ in events_of(plane, namespace, name)]


def wait_until_used(operator: OperatorProcess, name: str) -> None:
    """Wait until the operator counts the pod; each kind has its own watch."""
    used = f'winpod_runtime_class_pods{{runtime_class="{name}"}} 1.0'
    eventually(lambda: used in operator.answer("/metrics")[1].splitlines())


def node_selector(obj: dict[str, Any]) -> dict[str, Any]:
    return dict(obj["scheduling"]["nodeSelector"])


def test_classes_are_created_for_the_builds_of_a_mixed_cluster(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    add_nodes(
        plane,
        windows_node("old", BUILD_2019),
        windows_node("new", BUILD_2022, handlers=(PROCESS, HYPERVISOR, GUEST_2019)),
        linux_node("linux"),
    )
    eventually(
        lambda: classes(plane).keys() == {"windows-2019", "windows-2022", "windows-2019-hyperv"}
    )
    made = classes(plane)
    assert {obj["handler"] for obj in made.values()} == {PROCESS, GUEST_2019}
    assert node_selector(made["windows-2019"]) == windows_labels(BUILD_2019)
    assert node_selector(made["windows-2019-hyperv"]) == windows_labels(BUILD_2022)
    assert made["windows-2019-hyperv"]["overhead"] == {"podFixed": {"memory": "200Mi"}}
    assert "overhead" not in made["windows-2019"]
    for obj in made.values():
        assert obj["scheduling"]["tolerations"] == [TAINT | {"operator": "Equal"}]
        assert obj["metadata"]["labels"] == MANAGED
    labels = node(plane, "linux")["metadata"]["labels"]
    assert not [key for key in labels if "winpod" in key]
    assert operator.answer("/healthz")[0] == 200
    eventually(lambda: operator.answer("/readyz") == (200, "leader\n"))


def test_simulated_nodes_get_the_classes_of_their_builds(
    plane: ControlPlane, operator: OperatorProcess, tmp_path: Path
) -> None:
    del operator
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: a, build: '2019'}, {name: b, build: '2025'}]")
    options = ("--kubeconfig", str(plane.kubeconfig), "--simulated", "--nodes", str(nodes))
    with NodeProcess(tmp_path, *options):
        eventually(lambda: {"windows-2019", "windows-2025"} <= classes(plane).keys())
        eventually(lambda: "winpod.dev/isolation" in node(plane, "b")["metadata"]["labels"])
        eventually(lambda: is_ready(plane, "a"))


def test_guest_class_is_created_only_if_a_node_can_run_it(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    """containerd advertises the handler, on the same build, but cannot choose its images."""
    del operator
    handlers = (PROCESS, HYPERVISOR, GUEST_2019)
    containerd = windows_node("a", BUILD_2022, runtime="containerd://2.1.0", handlers=handlers)
    add_nodes(plane, containerd)
    eventually(lambda: "windows-2022" in classes(plane))
    assert "windows-2019-hyperv" not in classes(plane)
    add_nodes(plane, windows_node("b", BUILD_2022, handlers=handlers))
    eventually(lambda: "windows-2019-hyperv" in classes(plane))
    label = f"handler.winpod.dev/{GUEST_2019}"
    assert node_selector(classes(plane)["windows-2019-hyperv"])[label] == "true"
    assert node(plane, "b")["metadata"]["labels"][label] == "true"
    assert label not in node(plane, "a")["metadata"]["labels"]


def test_unmanaged_class_is_kept_and_reported(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    unmanaged = runtime_class("windows-2019", "their-handler", BUILD_2019)
    plane.apply(unmanaged)
    add_nodes(plane, windows_node("old", BUILD_2019), windows_node("new", BUILD_2022))
    eventually(lambda: "windows-2022" in classes(plane))
    eventually(lambda: operator.said("is not managed by winpod and is not changed"))
    eventually(lambda: "ClassNotChanged" in reasons(plane, "default", "windows-2019"))
    assert classes(plane)["windows-2019"]["handler"] == "their-handler"
    plane.kubectl("delete", "node", "old")
    eventually(lambda: "old" not in plane.kubectl("get", "nodes", "-o", "name"))
    configure(plane, "classes: {removeAfterSeconds: 0, name: 'win-{number}'}")
    eventually(lambda: classes(plane).keys() == {"windows-2019", "win-20348"})


def test_class_without_nodes_is_kept_while_a_pod_uses_it(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    add_nodes(plane, windows_node("old", BUILD_2019), windows_node("new", BUILD_2022))
    eventually(lambda: {"windows-2019", "windows-2022"} == classes(plane).keys())
    plane.apply(pod_using("last", "windows-2019"))
    wait_until_used(operator, "windows-2019")
    plane.kubectl("delete", "node", "old", "new")
    eventually(lambda: "windows-2022" not in classes(plane))
    eventually(lambda: operator.said('RuntimeClass "windows-2019" has no nodes and is kept'))
    assert "windows-2019" in classes(plane)
    plane.kubectl("delete", "pod", "last", "-n", "apps", "--force", "--grace-period=0")
    eventually(lambda: not classes(plane))


def test_class_with_another_handler_is_replaced_once_unused(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    plane.apply(runtime_class("windows-2019", "another-handler", BUILD_2019))
    plane.apply(pod_using("user", "windows-2019"))
    wait_until_used(operator, "windows-2019")
    add_nodes(plane, windows_node("old", BUILD_2019))
    plane.kubectl(
        "label", "runtimeclass", "windows-2019", *(f"{k}={v}" for k, v in MANAGED.items())
    )
    eventually(lambda: operator.said('RuntimeClass "windows-2019" is kept until no pod uses it'))
    assert classes(plane)["windows-2019"]["handler"] == "another-handler"
    plane.kubectl("delete", "pod", "user", "-n", "apps", "--force", "--grace-period=0")
    eventually(lambda: classes(plane).get("windows-2019", {}).get("handler") == PROCESS)


def test_updated_class_keeps_foreign_annotations(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    del operator
    add_nodes(plane, windows_node("old", BUILD_2019, taints=()))
    eventually(lambda: "windows-2019" in classes(plane))
    plane.kubectl("annotate", "runtimeclass", "windows-2019", "winpod.dev/retiring=gone by May")
    uid = classes(plane)["windows-2019"]["metadata"]["uid"]
    plane.kubectl("taint", "node", "old", "node.kubernetes.io/os=windows:NoSchedule")
    eventually(lambda: "tolerations" in classes(plane)["windows-2019"]["scheduling"])
    now = classes(plane)["windows-2019"]["metadata"]
    assert now["uid"] == uid
    assert now["annotations"]["winpod.dev/retiring"] == "gone by May"


def test_missing_node_labels_are_added_and_follow_the_kernel_version(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    del operator
    bare = windows_node("bare", BUILD_2019)
    del bare["metadata"]["labels"]["node.kubernetes.io/windows-build"]
    add_nodes(plane, bare)

    def build() -> object:
        return node(plane, "bare")["metadata"]["labels"].get("node.kubernetes.io/windows-build")

    eventually(lambda: build() == BUILD_2019)
    assert node(plane, "bare")["metadata"]["labels"]["winpod.dev/isolation"] == "process"
    eventually(lambda: "windows-2019" in classes(plane))
    bare["status"]["nodeInfo"]["kernelVersion"] = f"{BUILD_2025}.1"
    plane.apply(bare)
    eventually(lambda: build() == BUILD_2025)
    eventually(lambda: classes(plane).keys() == {"windows-2025"})


def test_invalid_settings_are_reported_and_the_last_valid_ones_kept(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    configure(plane, "classes: {removeAfterSeconds: 0, name: 'servers-{release}'}")
    add_nodes(plane, windows_node("old", BUILD_2019))
    eventually(lambda: "servers-2019" in classes(plane))
    configure(plane, "classes: {name: nothing-in-braces}")
    eventually(lambda: operator.said("classes.name is"))
    eventually(lambda: "SettingsNotUsed" in reasons(plane, NAMESPACE, "winpod-operator"))
    add_nodes(plane, windows_node("new", BUILD_2022))
    eventually(lambda: "servers-2022" in classes(plane))


def test_restart_with_invalid_settings_does_not_fall_back_to_defaults(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    configure(plane, "classes: {removeAfterSeconds: 0, name: 'servers-{release}'}")
    add_nodes(plane, windows_node("old", BUILD_2019))
    eventually(lambda: classes(plane).keys() == {"servers-2019"})
    configure(plane, "clases: {name: 'servers-{release}'}")
    eventually(lambda: operator.said("clases is not a setting"))
    operator.stop()
    plane.kubectl("delete", "events", "--all", "-n", NAMESPACE)
    operator.start()
    try:
        eventually(lambda: "SettingsNotUsed" in reasons(plane, NAMESPACE, "winpod-operator"))
        not_ready = (503, "the settings are invalid, see the log\n")
        eventually(lambda: operator.answer("/readyz") == not_ready)
        add_nodes(plane, windows_node("new", BUILD_2022))
        known = f'winpod_nodes{{build="{BUILD_2022}'
        eventually(lambda: known in operator.answer("/metrics")[1])
        assert not leader(plane)
        assert classes(plane).keys() == {"servers-2019"}
    finally:
        configure(plane, "classes: {removeAfterSeconds: 0, name: 'servers-{release}'}")
    eventually(lambda: classes(plane).keys() == {"servers-2019", "servers-2022"})


def test_deleted_settings_stay_in_effect_and_are_reported(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    configure(plane, "classes: {removeAfterSeconds: 0, name: 'servers-{release}'}")
    add_nodes(plane, windows_node("old", BUILD_2019))
    eventually(lambda: classes(plane).keys() == {"servers-2019"})
    plane.kubectl("delete", "configmap", "winpod-operator", "-n", NAMESPACE)
    eventually(lambda: operator.said("The ConfigMap winpod-operator was deleted"))
    add_nodes(plane, windows_node("new", BUILD_2022))
    eventually(lambda: classes(plane).keys() == {"servers-2019", "servers-2022"})


def test_operator_recovers_from_an_api_server_outage(
    plane: ControlPlane, operator: OperatorProcess
) -> None:
    eventually(lambda: operator.answer("/readyz") == (200, "leader\n"))
    plane.stop_api_server()
    time.sleep(2)
    plane.start_api_server()
    add_nodes(plane, windows_node("old", BUILD_2019))
    eventually(lambda: "windows-2019" in classes(plane))


def test_cluster_cache_equals_a_fresh_read_of_the_cluster(
    plane: ControlPlane,
) -> None:
    add_nodes(plane, windows_node("a", BUILD_2019), windows_node("b", BUILD_2022), linux_node("c"))
    plane.apply(runtime_class("guest", GUEST_2019, BUILD_2022, overhead=OVERHEAD))
    bound = [bound_pod(f"pod-{n}", "abc"[n % 3], f"{n}00m") for n in range(6)]
    plane.apply(*bound, pod_using("waits", "guest"))
    asyncio.run(_compare_after_changes(plane))


OVERHEAD = {"podFixed": {"memory": "200Mi"}}


def bound_pod(name: str, node: str, cpu: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    container = {"name": "main", "image": f"app:{cpu}", "resources": resources}
    return pod(name, "apps", {"nodeName": node, "containers": [container]})


async def _compare_after_changes(plane: ControlPlane) -> None:
    api = ApiClient(read_kubeconfig(plane.kubeconfig))
    cache = ClusterCache(api)
    usage = cache.subscribe(CachedKind.USAGE)
    task = asyncio.create_task(cache.run())
    try:
        await cache.wait_synced()
        await _wait_until_equal(cache, plane)
        assert cache.used_classes() == {"", "guest"}
        for change in (
            ("delete", "pod", "pod-1", "-n", "apps", "--force", "--grace-period=0"),
            ("patch", "pod", "pod-2", "-n", "apps", "--subresource=status", "-p", _SUCCEEDED),
            ("cordon", "b"),
            ("delete", "pod", "waits", "-n", "apps", "--force", "--grace-period=0"),
            ("delete", "node", "a"),
            ("delete", "runtimeclass", "guest"),
        ):
            await asyncio.to_thread(plane.kubectl, *change)
            await _wait_until_equal(cache, plane)
        async with asyncio.timeout(PATIENCE):
            while cache.used_classes() != {""}:
                await usage.wait()
                usage.clear()
        assert any(cache.cluster() is cache.cluster() for _ in range(2))
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await api.close()


_SUCCEEDED = '{"status": {"phase": "Succeeded"}}'


async def _wait_until_equal(cache: ClusterCache, plane: ControlPlane) -> None:
    """Compare nodes and classes until equal; an earlier test's operator may still change some."""
    deadline = time.monotonic() + PATIENCE
    while True:
        live = await read_live_cluster(plane.kubeconfig)
        cached = cache.cluster()
        nodes = ({n.name: n for n in cached.nodes}, {n.name: n for n in live.nodes})
        classes_of = (dict(cached.classes), {known.name: known for known in live.classes})
        if nodes[0] == nodes[1] and classes_of[0] == classes_of[1]:
            return
        assert time.monotonic() < deadline, (nodes, classes_of)
        await asyncio.sleep(0.05)


def test_one_of_two_operators_on_one_host_leads(
    plane: ControlPlane, operator: OperatorProcess, tmp_path: Path
) -> None:
    operator.stop()
    try:
        unnamed = [OperatorProcess(plane, tmp_path, name, "--identity", "") for name in "ab"]
        with unnamed[0] as a, unnamed[1] as b:

            def states() -> list[str]:
                return [operator_process.answer("/readyz")[1] for operator_process in (a, b)]

            eventually(lambda: sorted(states()) == ["leader\n", "standby\n"])
            assert leader(plane).startswith(f"{platform.node()}-")
            time.sleep(5)
            stable = eventually(states, lambda now: sorted(now) == ["leader\n", "standby\n"])
            first, second = (a, b) if stable[0] == "leader\n" else (b, a)
            held_by = leader(plane)
            first.stop()
            assert leader(plane) != held_by, "the lease is released"
            eventually(lambda: second.answer("/readyz") == (200, "leader\n"))
    finally:
        operator.start()


def test_standby_operator_takes_over_from_a_killed_leader(
    plane: ControlPlane, operator: OperatorProcess, tmp_path: Path
) -> None:
    """The lease of a killed leader has to expire; a stopped leader releases it."""
    eventually(lambda: leader(plane) == operator.name)
    with OperatorProcess(plane, tmp_path, "two") as second:
        eventually(lambda: second.answer("/readyz") == (200, "standby\n"))
        renewed = datetime.fromisoformat(lease(plane)["renewTime"])
        operator.kill()
        add_nodes(plane, windows_node("old", BUILD_2019))
        created = eventually(lambda: classes(plane).get("windows-2019", {}))
        assert leader(plane) == second.name
        acquired = datetime.fromisoformat(lease(plane)["acquireTime"])
        assert acquired > renewed + timedelta(seconds=LEASE_SECONDS)
        since = datetime.fromisoformat(created["metadata"]["creationTimestamp"])
        assert since >= acquired.replace(microsecond=0)
        operator.start()
        eventually(lambda: operator.answer("/readyz") == (200, "standby\n"))
    assert leader(plane) in ("", operator.name)
    eventually(lambda: leader(plane) == operator.name)

"""The operator's dashboard in a real browser, its metrics and events, and `winpod explain`.

One cluster with Node objects of two builds: one pod runs, one waits, one can never run, and one
was rejected.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import objects, rendered
from tests.support.e2e.chromium import Tables, document, first_pixel, screenshot
from tests.support.e2e.node_process import events_of, found
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    HYPERVISOR,
    PROCESS,
    add_nodes,
    linux_node,
    pod,
    pods_path,
    windows_node,
)
from tests.support.e2e.operator_process import OperatorProcess, ask_about_pods, classes, configure
from tests.support.e2e.waiting import eventually
from tests.support.registries import docker_registry
from tests.support.winpod_cli import winpod

from winpod.cli.main import app
from winpod.operator.upgrade.resource import UPGRADES

GUEST_2019 = f"{HYPERVISOR}-17763"
BUILD = "node.kubernetes.io/windows-build"
OLD_IMAGE_BUILD, NEW_IMAGE_BUILD = "10.0.17763.5458", "10.0.20348.2340"
LINUX = {"name": "app", "image": "registry.example/linux:1"}
LIGHT, DARK = (0xF6, 0xF7, 0xF9), (0x0D, 0x11, 0x17)


@dataclass
class Dashboard:
    plane: ControlPlane
    operator: OperatorProcess
    registry: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.operator.page_port}/"

    def state(self, query: str = "") -> dict[str, Any]:
        return dict(json.loads(get(f"{self.url}api/state?pods={query}")[1]))

    def pods(self, query: str = "") -> dict[str, dict[str, Any]]:
        return {pod["name"]: pod for pod in self.state(query)["pods"]["shown"]}


def get(url: str, **headers: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def image(directory: Path, reference: str, *builds: str) -> str:
    (directory / "content").mkdir(exist_ok=True)
    (directory / "content" / "app.txt").write_text("app")
    versions = [option for build in builds for option in ("--os-version", build)]
    command = ["image", "pack", str(directory / "content"), "-t", reference, *versions]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        app(command, standalone_mode=False)
    return reference


def windows(name: str, image: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": image}]
    return pod(name, "shop", {"os": {"name": "windows"}, "containers": containers, **spec})


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    directory = tmp_path_factory.mktemp("shown")
    with (
        docker_registry(directory / "registry") as registry,
        ControlPlane(directory / "plane", scheduler=False, controller_manager=False) as plane,
        OperatorProcess(plane, directory / "operator", "operator-7c9d") as operator,
    ):
        old = image(directory, f"{registry}/legacy:1", OLD_IMAGE_BUILD)
        new = image(directory, f"{registry}/shop:2", NEW_IMAGE_BUILD)
        plane.create_namespace("shop")
        handlers = (PROCESS, HYPERVISOR, GUEST_2019)
        add_nodes(
            plane,
            windows_node("win-2019-a", BUILD_2019),
            windows_node("win-2022-a", BUILD_2022, handlers=handlers),
            windows_node("win-2022-b", BUILD_2022, handlers=handlers, unschedulable=True),
            linux_node("linux-a"),
        )
        expected = {"windows-2019", "windows-2019-hyperv", "windows-2022"}
        eventually(lambda: expected <= classes(plane).keys())
        plane.apply(
            windows("web-0", new, runtimeClassName="windows-2022", nodeName="win-2022-a")
            | {"status": {"phase": "Running"}},
            windows("big", new, runtimeClassName="windows-2022"),
            windows("legacy", old, nodeSelector={BUILD: BUILD_2022}),
            pod(
                "linux",
                "shop",
                {"containers": [{"name": "a", "image": "b"}], "nodeName": "linux-a"},
            ),
        )
        plane.apply(upgrade())
        path = f"{UPGRADES}/2019-to-2022"
        eventually(lambda: found(plane, path).get("status", {}).get("phase") == "Done")
        ask_about_pods(plane, operator.webhook_port)
        dashboard = Dashboard(plane, operator, registry)
        rejected = windows("refused", new, nodeSelector={BUILD: BUILD_2019})
        eventually(lambda: create(dashboard, rejected))
        eventually(lambda: dashboard.pods().keys() == {"web-0", "big", "legacy"})
        eventually(lambda: dashboard.pods()["legacy"]["fate"] == "cannot-run")
        yield dashboard


def create(dashboard: Dashboard, obj: dict[str, Any]) -> str:
    """Return the API server's rejection of a pod, or an empty text if it is admitted."""
    answer = dashboard.plane.request("POST", pods_path("shop"), obj)
    if answer.status == 201:
        dashboard.plane.request("DELETE", f"{pods_path('shop')}/{obj['metadata']['name']}")
        return ""
    return answer.message


def upgrade() -> dict[str, Any]:
    return {
        "apiVersion": "winpod.dev/v1alpha1",
        "kind": "WindowsUpgrade",
        "metadata": {"name": "2019-to-2022"},
        "spec": {"from": "2019", "to": "2022"},
    }


def test_dashboard_shows_nodes_classes_and_pods_with_reasons(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    text = document(dashboard.url, tmp_path)
    tables = Tables(text).found
    nodes = {tuple(row[:3]): row[4:] for row in tables["nodes-title"].rows}
    both = ("Windows Server 2022", BUILD_2022, "process, hypervisor")
    assert nodes[both] == ["2", "2 ready, 1 cordoned", "win-2022-a, win-2022-b"]
    assert nodes["Windows Server 2019", BUILD_2019, "process"][1] == "1 ready, 1 cordoned"
    shown_classes = {row[0]: row for row in tables["classes-title"].rows}
    assert shown_classes.keys() == {"windows-2019", "windows-2019-hyperv", "windows-2022"}
    assert shown_classes["windows-2019"][2] == "winpod"
    assert "retiring" in shown_classes["windows-2019"][5]
    assert shown_classes["windows-2022"][3:5] == ["2", "2"]
    pods = {row[0].split()[0]: row[1:] for row in tables["pods-title"].rows}
    assert pods.keys() == {"shop/web-0", "shop/big", "shop/legacy"}
    assert pods["shop/web-0"][:3] == ["runs", "win-2022-a", "windows-2022"]
    assert pods["shop/legacy"][0] == "cannot run"
    assert "10.0.17763" in pods["shop/legacy"][3]
    assert {row[1].split()[0] for row in tables["refused-title"].rows} == {"shop/refused"}
    assert "2019-to-2022" in text
    assert "Done" in text
    assert all(table.columns_are_named for table in tables.values())


def test_dashboard_follows_the_preferred_color_scheme(dashboard: Dashboard, tmp_path: Path) -> None:
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"
    screenshot(dashboard.url, light, size=(1280, 1530), dark=False)
    screenshot(dashboard.url, dark, dark=True)
    assert first_pixel(light) == LIGHT
    assert first_pixel(dark) == DARK


def test_dashboard_loads_nothing_from_other_hosts(dashboard: Dashboard) -> None:
    for name in ("", "dashboard.css", "dashboard.js"):
        status, text = get(dashboard.url + name)
        assert status == 200
        assert "http:" not in text
        assert "https:" not in text


def test_pods_are_filtered_by_name_node_class_and_verdict(dashboard: Dashboard) -> None:
    assert dashboard.pods("WEB-").keys() == {"web-0"}
    assert dashboard.pods("win-2022-a").keys() == {"web-0"}
    assert dashboard.pods("cannot-run").keys() == {"legacy"}
    assert dashboard.state()["pods"]["counts"]["not-windows"] == 1


def test_dashboard_without_token_is_served_only_on_localhost(dashboard: Dashboard) -> None:
    assert get(f"{dashboard.url}api/state", Host="evil.example")[0] == 403
    status, text = dashboard.operator.answer("/api/state")
    assert status == 403
    assert "port-forward" in text
    assert dashboard.operator.answer("/metrics")[0] == 200


def test_dashboard_with_token_requires_permission_to_list_pods(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    plane, port = dashboard.plane, dashboard.operator.port
    rbac = rendered(tmp_path, "--set", "rbac.page=true", "--show-only", "templates/rbac.yaml")
    plane.apply(*objects(rbac))
    configure(plane, "page: {authenticated: true}")
    eventually(lambda: dashboard.operator.answer("/api/state")[0] == 401)
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    plane.apply(account | {"metadata": {"name": "reader", "namespace": "shop"}})
    plane.apply(account | {"metadata": {"name": "stranger", "namespace": "shop"}})
    plane.kubectl("create", "clusterrole", "reader", "--verb=list", "--resource=pods")
    bind = ("create", "clusterrolebinding", "reader", "--clusterrole=reader")
    plane.kubectl(*bind, "--serviceaccount=shop:reader")
    url = f"http://127.0.0.1:{port}/api/state"

    def is_answered(token: str, status: int) -> bool:
        return get(url, Authorization=f"Bearer {token}")[0] == status

    for name, status in (("reader", 200), ("stranger", 403)):
        token = plane.kubectl("create", "token", name, "-n", "shop").strip()
        eventually(partial(is_answered, token, status))
    assert is_answered("nonsense", 401)
    configure(plane, "")
    eventually(lambda: dashboard.operator.answer("/api/state")[0] == 403)


def test_metrics_count_nodes_classes_pods_and_actions(dashboard: Dashboard) -> None:
    text = eventually(
        lambda: dashboard.operator.answer("/metrics")[1],
        lambda metrics: "winpod_leader 1.0" in metrics,
    )
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    node = f'build="{BUILD_2022}",isolation="process-hypervisor",os="windows",ready="true"'
    assert lines[f'winpod_nodes{{{node},runtime="winpod"}}'] == "2.0"
    assert lines['winpod_runtime_classes{ours="true",retiring="true"}'] == "1.0"
    assert lines['winpod_runtime_class_pods{runtime_class="windows-2022"}'] == "2.0"
    assert lines['winpod_pods{verdict="cannot-run"}'] == "1.0"
    assert float(lines['winpod_reconciliations_total{result="done"}']) > 0
    assert lines['winpod_events_total{kind="RuntimeClass",reason="ClassCreated"}'] == "3.0"
    assert "winpod_admission_reviews_total" in text


def test_events_report_classes_rejections_and_unplaceable_pods(dashboard: Dashboard) -> None:
    def reasons(namespace: str, name: str) -> set[str]:
        return {reason for reason, _ in events_of(dashboard.plane, namespace, name)}

    eventually(lambda: "ClassCreated" in reasons("default", "windows-2022"))
    eventually(lambda: "PodUnplaceable" in reasons("shop", "legacy"))
    eventually(lambda: "PodRefused" in reasons("shop", "refused"))
    messages = [message for _, message in events_of(dashboard.plane, "shop", "refused")]
    assert any(NEW_IMAGE_BUILD in message for message in messages)


def test_explain_reports_why_a_pod_waits_and_what_to_change(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    options = ("-n", "shop", "--kubeconfig", str(dashboard.plane.kubeconfig))
    output = winpod("explain", "legacy", *options, home=tmp_path).out
    assert "cannot run" in output
    assert OLD_IMAGE_BUILD in output
    assert "→" in output
    result = winpod("explain", "shop/web-0", *options[2:], "-o", "json", home=tmp_path)
    explained = json.loads(result.out)
    assert explained["node"] == "win-2022-a"
    assert explained["status"] == "runs"
    assert explained["class"]["name"] == "windows-2022"
    assert explained["class"]["handler"] == PROCESS
    outcomes = {name: v["outcome"] for v in explained["verdicts"] for name in v["nodes"]}
    assert outcomes["win-2022-a"] == "runs"
    assert outcomes["win-2019-a"] == "blocked"
    missing = winpod("explain", "nobody", *options, home=tmp_path)
    assert missing.code == 2
    assert "nobody" in missing.err

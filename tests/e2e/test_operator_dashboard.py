"""What the operator shows: its page in a real browser, metrics, events, and `winpod explain`.

One cluster with nodes of two builds, written down; one pod runs, one waits, one cannot ever run,
and one was refused.
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
class Shown:
    plane: ControlPlane
    operator: OperatorProcess
    registry: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.operator.page_port}/"

    def state(self, wanted: str = "") -> dict[str, Any]:
        return dict(json.loads(get(f"{self.url}api/state?pods={wanted}")[1]))

    def pods(self, wanted: str = "") -> dict[str, dict[str, Any]]:
        return {pod["name"]: pod for pod in self.state(wanted)["pods"]["shown"]}


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
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
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
        wanted = {"windows-2019", "windows-2019-hyperv", "windows-2022"}
        eventually(lambda: wanted <= classes(plane).keys())
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
        shown = Shown(plane, operator, registry)
        never = windows("refused", new, nodeSelector={BUILD: BUILD_2019})
        eventually(lambda: create(shown, never))
        eventually(lambda: shown.pods().keys() == {"web-0", "big", "legacy"})
        eventually(lambda: shown.pods()["legacy"]["fate"] == "cannot-run")
        yield shown


def create(shown: Shown, obj: dict[str, Any]) -> str:
    """What the API server says against a pod, nothing where it takes it."""
    answer = shown.plane.request("POST", pods_path("shop"), obj)
    if answer.status == 201:
        shown.plane.request("DELETE", f"{pods_path('shop')}/{obj['metadata']['name']}")
        return ""
    return answer.message


def upgrade() -> dict[str, Any]:
    return {
        "apiVersion": "winpod.dev/v1alpha1",
        "kind": "WindowsUpgrade",
        "metadata": {"name": "2019-to-2022"},
        "spec": {"from": "2019", "to": "2022"},
    }


def test_the_page_shows_in_a_browser_what_there_is_and_why(shown: Shown, tmp_path: Path) -> None:
    text = document(shown.url, tmp_path)
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


def test_the_page_is_dark_or_light_as_the_reader_wants_it(shown: Shown, tmp_path: Path) -> None:
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"
    screenshot(shown.url, light, size=(1280, 1530), dark=False)
    screenshot(shown.url, dark, dark=True)
    assert first_pixel(light) == LIGHT
    assert first_pixel(dark) == DARK


def test_the_page_asks_nobody_but_the_operator(shown: Shown) -> None:
    for name in ("", "dashboard.css", "dashboard.js"):
        status, text = get(shown.url + name)
        assert status == 200
        assert "http:" not in text
        assert "https:" not in text


def test_pods_are_found_by_name_node_class_and_verdict(shown: Shown) -> None:
    assert shown.pods("WEB-").keys() == {"web-0"}
    assert shown.pods("win-2022-a").keys() == {"web-0"}
    assert shown.pods("cannot-run").keys() == {"legacy"}
    assert shown.state()["pods"]["counts"]["not-windows"] == 1


def test_nobody_but_this_machine_sees_the_page_without_a_token(shown: Shown) -> None:
    assert get(f"{shown.url}api/state", Host="evil.example")[0] == 403
    status, text = shown.operator.answer("/api/state")
    assert status == 403
    assert "port-forward" in text
    assert shown.operator.answer("/metrics")[0] == 200


def test_with_a_token_the_page_is_for_those_who_may_list_all_pods(
    shown: Shown, tmp_path: Path
) -> None:
    plane, port = shown.plane, shown.operator.port
    asking = rendered(tmp_path, "--set", "rbac.page=true", "--show-only", "templates/rbac.yaml")
    plane.apply(*objects(asking))
    configure(plane, "page: {authenticated: true}")
    eventually(lambda: shown.operator.answer("/api/state")[0] == 401)
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    plane.apply(account | {"metadata": {"name": "reader", "namespace": "shop"}})
    plane.apply(account | {"metadata": {"name": "stranger", "namespace": "shop"}})
    plane.kubectl("create", "clusterrole", "reader", "--verb=list", "--resource=pods")
    bind = ("create", "clusterrolebinding", "reader", "--clusterrole=reader")
    plane.kubectl(*bind, "--serviceaccount=shop:reader")
    url = f"http://127.0.0.1:{port}/api/state"

    def is_answered(token: str, status: int) -> bool:
        return get(url, Authorization=f"Bearer {token}")[0] == status

    for name, wanted in (("reader", 200), ("stranger", 403)):
        token = plane.kubectl("create", "token", name, "-n", "shop").strip()
        eventually(partial(is_answered, token, wanted))
    assert is_answered("nonsense", 401)
    configure(plane, "")
    eventually(lambda: shown.operator.answer("/api/state")[0] == 403)


def test_metrics_count_nodes_classes_pods_and_what_was_done(shown: Shown) -> None:
    text = eventually(
        lambda: shown.operator.answer("/metrics")[1], lambda told: "winpod_leader 1.0" in told
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


def test_events_tell_of_classes_refusals_and_pods_that_nothing_can_run(shown: Shown) -> None:
    def reasons(namespace: str, name: str) -> set[str]:
        return {reason for reason, _ in events_of(shown.plane, namespace, name)}

    eventually(lambda: "ClassCreated" in reasons("default", "windows-2022"))
    eventually(lambda: "PodUnplaceable" in reasons("shop", "legacy"))
    eventually(lambda: "PodRefused" in reasons("shop", "refused"))
    messages = [said for _, said in events_of(shown.plane, "shop", "refused")]
    assert any(NEW_IMAGE_BUILD in message for message in messages)


def test_explain_says_why_a_pod_waits_and_what_to_change(shown: Shown, tmp_path: Path) -> None:
    where = ("-n", "shop", "--kubeconfig", str(shown.plane.kubeconfig))
    told = winpod("explain", "legacy", *where, home=tmp_path).out
    assert "cannot run" in told
    assert OLD_IMAGE_BUILD in told
    assert "→" in told
    ran = winpod("explain", "shop/web-0", *where[2:], "-o", "json", home=tmp_path)
    there = json.loads(ran.out)
    assert there["node"] == "win-2022-a"
    assert there["status"] == "runs"
    assert there["class"]["name"] == "windows-2022"
    assert there["class"]["handler"] == PROCESS
    outcomes = {name: v["outcome"] for v in there["verdicts"] for name in v["nodes"]}
    assert outcomes["win-2022-a"] == "runs"
    assert outcomes["win-2019-a"] == "blocked"
    missing = winpod("explain", "nobody", *where, home=tmp_path)
    assert missing.code == 2
    assert "nobody" in missing.err

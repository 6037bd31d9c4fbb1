"""Stories 2 and 3 of the documents, with `winpod play` and on a real control plane.

Story 2 runs an older image in a guest of its build. In story 3, one name is two images for two
handlers.
"""

import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.e2e import stories
from tests.support.e2e.command_line import Winpod
from tests.support.e2e.guest_cluster import GuestCluster, guest_cluster
from tests.support.e2e.microvms import machines, winpod
from tests.support.e2e.node_process import condition, events_of, node
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    HYPERVISOR,
    PROCESS,
    pod,
    runtime_class,
)
from tests.support.e2e.operator_process import OperatorProcess, classes
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_cluster import windows_spec

from winpod.images.base.builder import Base
from winpod.kubelet.node.node_status import EMULATED
from winpod.labels import ACCELERATOR_ANNOTATION, HYPERV_CAPABILITY_LABEL, HYPERVISOR_LABEL
from winpod.windows.handlers import VM_PROCESSOR_COUNT

__all__ = ["winpod"]

SHOW_VERSIONS = r"ver & type \\?\unix\proc\version"
MISMATCH = "The container operating system does not match the host operating system."
GUEST = "runhcs-wcow-hypervisor-17763"


def kernel_release(output: str) -> str:
    """Return the Linux release that a program in the container reports."""
    match = re.search(r"Linux version (\S+)", output)
    assert match, output
    return match[1]


@pytest.fixture(scope="module")
def layout(winpod: Winpod) -> Path:
    """Pack the images of the examples with a program that prints its versions."""
    return stories.pack_images(winpod, SHOW_VERSIONS)


@pytest.fixture
def played_winpod(winpod: Winpod) -> Iterator[Winpod]:
    yield winpod
    assert winpod("down", "--volumes").returncode == 0
    assert machines(winpod, "nodes/*/runtime") == []


def play(winpod: Winpod, story: int, layout: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    result, report = stories.play(winpod, story, layout)
    assert report["nodes"][0]["accelerator"] == "emulation"
    assert GUEST in report["nodes"][0]["handlers"]
    return result.stdout + result.stderr, {pod["name"]: pod for pod in report["pods"]}


def logs(winpod: Winpod, pod: str) -> str:
    result = eventually(
        lambda: winpod("logs", pod), lambda result: "Linux version" in result.stdout
    )
    return result.stdout


def test_play_story_2_older_image_runs_only_in_guest(played_winpod: Winpod, layout: Path) -> None:
    output, pods = play(played_winpod, 2, layout)
    assert {name: pod["state"] for name, pod in pods.items()} == {
        "legacy": "Running",
        "modern": "Running",
        "legacy-beside-the-host": "Pending",
    }, output
    assert MISMATCH in output
    assert "→ set runtimeClassName: windows-1809-hyperv" in output
    legacy, modern = logs(played_winpod, "legacy"), logs(played_winpod, "modern")
    assert "Microsoft Windows 10.0.17763" in legacy
    assert "Microsoft Windows 10.0.18362" in modern
    assert kernel_release(modern) == platform.release() != kernel_release(legacy)
    assert f"{GUEST} (emulated)" in output
    assert (pods["legacy"]["accelerator"], pods["modern"]["accelerator"]) == ("emulation", "")
    rows = {row.split()[-1]: row for row in played_winpod("ps").stdout.splitlines()}
    assert "(emulated)" in rows["legacy/app"]
    assert "(emulated)" not in rows["modern/app"]
    (inspected,) = json.loads(played_winpod("inspect", "legacy").stdout)
    assert inspected["sandbox"]["info"]["info"]["accelerator"] == "emulation"
    assert "accelerator: emulation" in played_winpod("describe", "legacy").stdout


def test_play_story_3_one_name_is_two_images_for_two_handlers(
    played_winpod: Winpod, layout: Path
) -> None:
    output, pods = play(played_winpod, 3, layout)
    assert {pod["state"] for pod in pods.values()} == {"Running"}, output
    assert len({image for pod in pods.values() for image in pod["images"]}) == 1
    older, newer = logs(played_winpod, "sdk-1809"), logs(played_winpod, "sdk-1903")
    assert "Microsoft Windows 10.0.17763" in older
    assert "Microsoft Windows 10.0.18362" in newer
    assert kernel_release(newer) == platform.release() != kernel_release(older)


def test_class_gives_2019_container_hypervisor_isolation_on_2019_host(
    played_winpod: Winpod, layout: Path
) -> None:
    image = {"name": "app", "image": "registry.example/legacy:1.0"}
    manifest = played_winpod.home / "of-2019.json"
    guest = pod("guest", "default", {"runtimeClassName": "guest", "containers": [image]})
    objects = [runtime_class("guest", HYPERVISOR, BUILD_2019), guest]
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    result = played_winpod("play", str(manifest), "--node", "2019", "--layout", str(layout))
    assert result.returncode == 0, result.stderr
    output = logs(played_winpod, "guest")
    assert f"Microsoft Windows {BUILD_2019}" in output
    assert kernel_release(output) != platform.release()


@pytest.fixture(scope="module")
def cluster(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestCluster]:
    with guest_cluster(tmp_path_factory.mktemp("guests"), base) as running:
        yield running


def spec(image: str, runtime_class_name: str) -> dict[str, Any]:
    """Return the spec of a pod that sleeps and is scheduled by its class."""
    made = windows_spec(image, "cmd", "/c", "ping -n 3600 127.0.0.1 >nul")
    del made["nodeSelector"], made["tolerations"]
    return made | {"runtimeClassName": runtime_class_name}


def versions(cluster: GuestCluster, namespace: str, name: str) -> str:
    return cluster.exec(namespace, name, "cmd", "/c", SHOW_VERSIONS)


def waiting_message(cluster: GuestCluster, namespace: str, name: str) -> str:
    status = cluster.get(namespace, "pod", name)["status"].get("containerStatuses", [{}])[0]
    return str(status.get("state", {}).get("waiting", {}).get("message", ""))


def pods(cluster: GuestCluster, namespace: str) -> list[str]:
    return cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").split()


def check(cluster: GuestCluster, manifest: dict[str, Any]) -> dict[str, Any]:
    file = cluster.directory / "checked.json"
    file.write_text(json.dumps(manifest))
    kubeconfig = ("--kubeconfig", str(cluster.plane.kubeconfig))
    result = cluster.winpod("check", "-f", str(file), *kubeconfig, "-o", "json")
    (workload,) = json.loads(result.stdout)["workloads"]
    return dict(workload)


def test_story_2_on_node_with_and_without_hypervisor_isolation(
    cluster: GuestCluster,
) -> None:
    ns, image = "story-2", cluster.images["legacy"]
    cluster.plane.create_namespace(ns)
    cluster.plane.apply(
        runtime_class("beside", PROCESS, BUILD_2022), runtime_class("guest", GUEST, BUILD_2022)
    )
    legacy = pod("legacy", ns, spec(image, "guest"))
    cluster.plane.apply(legacy, pod("beside", ns, spec(image, "beside")))
    assert cluster.handlers("new") == {"", PROCESS}
    labels = node(cluster.plane, "new")["metadata"]["labels"]
    assert not {HYPERVISOR_LABEL, HYPERV_CAPABILITY_LABEL} & labels.keys()
    cluster.until(
        "the pull is rejected", lambda: MISMATCH in waiting_message(cluster, ns, "beside")
    )
    assert f"or on this host with the handler {GUEST}" in waiting_message(cluster, ns, "beside")
    cluster.until(
        "the sandbox is rejected",
        lambda: "FailedCreatePodSandBox" in dict(events_of(cluster.plane, ns, "legacy")),
    )
    message = dict(events_of(cluster.plane, ns, "legacy"))["FailedCreatePodSandBox"]
    assert f'"{GUEST}" requires hypervisor isolation' in message
    assert "neither kvm_intel nor kvm_amd" in message
    assert "WINPOD_ALLOW_EMULATION=1" in message
    before = check(cluster, legacy)
    (on_new,) = (v for v in before["verdicts"] if "new" in v["nodes"])
    assert before["status"] == "cannot-run"
    assert [reason["cause"] for reason in on_new["reasons"]] == ["handler"]

    cluster.allow_guests()
    assert {GUEST, HYPERVISOR} <= cluster.handlers("new")
    cluster.until_ready(ns, "legacy")
    node_object = node(cluster.plane, "new")
    assert node_object["metadata"]["labels"][HYPERVISOR_LABEL] == "emulation"
    assert node_object["metadata"]["labels"][HYPERV_CAPABILITY_LABEL] == "hyperv"
    assert condition(node_object, EMULATED)["status"] == "True"
    output = versions(cluster, ns, "legacy")
    assert f"Microsoft Windows {BUILD_2019}" in output
    assert kernel_release(output) != platform.release()
    running = cluster.get(ns, "pod", "legacy")
    assert running["metadata"]["annotations"][ACCELERATOR_ANNOTATION] == "emulation"
    assert running["status"]["containerStatuses"][0]["restartCount"] == 0
    after = check(cluster, legacy)
    assert (after["status"], after["node"]) == ("runs", "new")
    assert {v["isolation"] for v in after["verdicts"] if v["outcome"] == "runs"} == {"hypervisor"}
    cluster.delete_pods(ns)


def test_story_3_one_name_is_two_images_for_two_handlers(cluster: GuestCluster) -> None:
    ns = "story-3"
    cluster.allow_guests()
    cluster.plane.create_namespace(ns)
    builds = {"older": (GUEST, BUILD_2019), "newer": (HYPERVISOR, BUILD_2022)}
    for name, (handler, _) in builds.items():
        cluster.plane.apply(
            runtime_class(name, handler, BUILD_2022), pod(name, ns, spec(cluster.image, name))
        )
    cluster.until_ready(ns, *builds)
    for name, (_, build) in builds.items():
        output = versions(cluster, ns, name)
        assert f"Microsoft Windows {build}" in output
        assert kernel_release(output) != platform.release()
    statuses = [cluster.get(ns, "pod", name)["status"]["containerStatuses"][0] for name in builds]
    assert {status["image"] for status in statuses} == {cluster.image}
    assert len(cluster.microvms()) == len(builds)
    cluster.delete_pods(ns)
    assert cluster.microvms() == []


def test_pod_annotations_override_size_of_handler(
    cluster: GuestCluster,
) -> None:
    ns, reserve = "sizes", f"{HYPERVISOR}-reserve"
    cluster.allow_guests()
    cluster.plane.create_namespace(ns)
    sized = pod("sized", ns, spec(cluster.image, "reserve"))
    sized["metadata"]["annotations"] = {VM_PROCESSOR_COUNT: "1"}
    cluster.plane.apply(runtime_class("reserve", reserve, BUILD_2022), sized)
    cluster.until_ready(ns, "sized")
    output = cluster.exec(ns, "sized", "cmd", "/c", r"type \\?\unix\proc\cpuinfo")
    assert output.count("processor\t:") == 1
    (pid,) = cluster.microvms()
    locked = re.search(r"VmLck:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert locked
    assert int(locked[1]) >= 512 << 10, "the part of 1 GiB that cannot be huge pages"
    cluster.delete_pods(ns)


def test_upgrade_moves_pod_into_guest_of_old_build(cluster: GuestCluster) -> None:
    ns, plane = "moving", cluster.plane
    cluster.allow_guests()
    plane.create_namespace(ns)
    entering = cluster.machine.entering
    with OperatorProcess(plane, cluster.directory / "operator", "one", before=entering) as process:
        names = {"windows-2019", "windows-2022-hyperv-reserve-2core"}
        cluster.until("the classes exist", lambda: names <= classes(plane).keys())
        sized = classes(plane)["windows-2022-hyperv-reserve-2core"]
        assert sized["handler"] == f"{HYPERVISOR}-reserve-2core"
        template = {
            "metadata": {"labels": {"app": "legacy"}},
            "spec": spec(cluster.images["legacy"], "windows-2019"),
        }
        plane.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "legacy", "namespace": ns},
                "spec": {"selector": {"matchLabels": {"app": "legacy"}}, "template": template},
            }
        )
        cluster.until_rolled_out(ns, "deployment/legacy")
        assert kernel_release(versions(cluster, ns, "deployment/legacy")) == platform.release()
        applied = cluster.winpod(
            *("upgrade", "apply", "--from", "2019", "--to", "2022", "--way", "same-class"),
            *("--yes", "--kubeconfig", str(plane.kubeconfig)),
        )
        assert applied.returncode == 0, applied.stdout + applied.stderr + process.log.read_text()
    assert classes(plane)["windows-2019"]["handler"] == GUEST
    cluster.until_rolled_out(ns, "deployment/legacy")
    cluster.until("the old pod is deleted", lambda: len(pods(cluster, ns)) == 1)
    output = versions(cluster, ns, "deployment/legacy")
    assert f"Microsoft Windows {BUILD_2019}" in output
    assert kernel_release(output) != platform.release()
    cluster.kubectl("delete", "deployment", "legacy", "-n", ns)

"""Workloads on Windows nodes of a real cluster: placement, rollouts, drains, restarts, status."""

import re
import time
from functools import partial
from typing import Any

from tests.e2e.controlplane import IN_TIME
from tests.support.e2e.node_process import events_of
from tests.support.e2e.objects import BUILD_2019, BUILD_2022, PROCESS, runtime_class
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_cluster import BUILDS, WindowsCluster, windows_spec

SLEEP = ("cmd", "/c", "ping -n 3600 127.0.0.1 >nul")
BUILD_OF = {"win-2019": BUILD_2019, "win-2022": BUILD_2022}


def test_story_1_runtime_classes_place_pods_on_matching_builds(cluster: WindowsCluster) -> None:
    ns = _namespace(cluster, "story-1")
    for node, build in BUILD_OF.items():
        cluster.plane.apply(runtime_class(node, PROCESS, build))
    for node in BUILDS:
        spec = windows_spec(cluster.images[node], *SLEEP, runtimeClassName=node)
        del spec["tolerations"], spec["nodeSelector"]
        cluster.plane.apply(_pod(ns, f"on-{node}", spec))
    cluster.until_ready(ns, *(f"on-{node}" for node in BUILDS))
    for node in BUILDS:
        assert cluster.get(ns, "pod", f"on-{node}")["spec"]["nodeName"] == node
        version = cluster.exec(ns, f"on-{node}", "cmd", "/c", "ver")
        assert BUILD_OF[node] in version
    cluster.delete_pods(ns)


def test_story_2_old_image_on_newer_node_fails_with_the_windows_error(
    cluster: WindowsCluster,
) -> None:
    ns = _namespace(cluster, "story-2")
    spec = windows_spec(cluster.images["win-2019"], *SLEEP, node="win-2022")
    cluster.plane.apply(_pod(ns, "legacy", spec))
    image = cluster.images["win-2019"]
    error = (
        f'failed to pull image "{image}" for the handler runhcs-wcow-process: '
        "hcs::CreateComputeSystem: "
        "The container operating system does not match the host operating system. "
        f"{image} has no build 10.0.20348; it has 10.0.17763. "
        "It runs on a host of build 10.0.17763, or on this host with the handler "
        "runhcs-wcow-hypervisor-17763 (set it in a RuntimeClass or with --handler)."
    )
    back_off = f'Back-off pulling image "{image}": ErrImagePull: {error}'
    messages = {"ErrImagePull": error, "ImagePullBackOff": back_off}
    waiting = partial(_waiting, cluster, ns, "legacy")
    reason, message = eventually(waiting, lambda seen: seen[0])
    assert message == messages[reason]
    eventually(waiting, lambda seen: seen == ("ImagePullBackOff", back_off))
    failed = ("Failed", f'Failed to pull image "{image}": {error}')
    eventually(partial(events_of, cluster.plane, ns, "legacy"), lambda events: failed in events)
    cluster.delete_pods(ns)


def test_story_3_tag_resolves_to_the_image_of_each_build(cluster: WindowsCluster) -> None:
    ns = _namespace(cluster, "story-3")
    for node in BUILDS:
        spec = windows_spec(cluster.image, *SLEEP, node=node)
        cluster.plane.apply(_pod(ns, f"on-{node}", spec))
    cluster.until_ready(ns, *(f"on-{node}" for node in BUILDS))
    for node, build in BUILD_OF.items():
        status = _status(cluster, ns, f"on-{node}")
        assert status["image"] == cluster.image
        assert status["imageID"].startswith("localhost/any@sha256:")
        assert build in cluster.exec(ns, f"on-{node}", "cmd", "/c", "ver")
    cluster.delete_pods(ns)


def test_deployment_is_rolled_out_and_drained(cluster: WindowsCluster) -> None:
    ns = _namespace(cluster, "rolling")
    cluster.plane.apply(_workload(ns, "Deployment", cluster.image, replicas=2))
    cluster.until_rolled_out(ns, "deployment/app")
    cluster.kubectl("set", "env", "deployment/app", "-n", ns, "VERSION=two")
    cluster.until_rolled_out(ns, "deployment/app")
    nodes = ("get", "pods", "-n", ns, "-o", "jsonpath={.items[*].spec.nodeName}")

    def drained() -> set[str]:
        """Return the nodes of its pods; a scheduler with a stale cache may use the drained one."""
        cluster.kubectl(
            *("drain", "win-2019", "--ignore-daemonsets", "--force", "--delete-emptydir-data"),
            *(IN_TIME, f"--pod-selector=in={ns}"),
        )
        cluster.until_rolled_out(ns, "deployment/app")
        return set(cluster.kubectl(*nodes).split())

    try:
        eventually(drained, lambda found: found == {"win-2022"})
    finally:
        cluster.kubectl("uncordon", "win-2019")
    cluster.kubectl("delete", "deployment", "app", "-n", ns)


def test_jobs_stateful_sets_and_daemon_sets_run(cluster: WindowsCluster) -> None:
    ns = _namespace(cluster, "kinds")
    job = windows_spec(cluster.image, "cmd", "/c", "echo done& exit 0", restartPolicy="Never")
    cluster.plane.apply(
        _workload(ns, "StatefulSet", cluster.image, serviceName="app"),
        _workload(ns, "DaemonSet", cluster.image),
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "once", "namespace": ns},
            "spec": {"template": {"spec": job}},
        },
    )
    cluster.kubectl("wait", "-n", ns, "--for=condition=Complete", IN_TIME, "job/once")
    assert cluster.kubectl("logs", "-n", ns, "job/once").strip() == "done"
    cluster.until_rolled_out(ns, "statefulset/app")
    cluster.until_rolled_out(ns, "daemonset/app")
    status = cluster.get(ns, "daemonset", "app")["status"]
    assert status["numberReady"] == len(BUILDS)
    assert cluster.get(ns, "pod", "app-0")["spec"]["hostname"] == "app-0"
    cluster.kubectl("delete", "statefulset/app", "daemonset/app", "job/once", "-n", ns)


def test_killed_node_loses_and_restarts_no_pod(cluster: WindowsCluster) -> None:
    ns = _namespace(cluster, "killed")
    cluster.plane.apply(_pod(ns, "stays", windows_spec(cluster.image, *SLEEP, node="win-2019")))
    cluster.until_ready(ns, "stays")
    before = _status(cluster, ns, "stays")
    cluster.nodes["win-2019"].kill()
    cluster.nodes["win-2019"].start()
    cluster.plane.apply(_pod(ns, "new", windows_spec(cluster.image, *SLEEP, node="win-2019")))
    cluster.until_ready(ns, "new")
    assert _status(cluster, ns, "stays") == before
    assert cluster.exec(ns, "stays", "cmd", "/c", "echo here").strip() == "here"
    cluster.delete_pods(ns)


CONDITIONS = {
    "PodReadyToStartContainers": "True",
    "Initialized": "True",
    "Ready": "True",
    "ContainersReady": "True",
    "PodScheduled": "True",
}
SIZED = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
CONTAINER = {
    "name": "app",
    "ready": True,
    "started": True,
    "restartCount": 0,
    "lastState": {},
    "resources": SIZED,
    "allocatedResources": SIZED["requests"],
}


def test_status_of_running_pod_is_that_of_the_kubelet(cluster: WindowsCluster) -> None:
    ns = _namespace(cluster, "told")
    spec = windows_spec(cluster.image, *SLEEP, node="win-2022", container={"resources": SIZED})
    cluster.plane.apply(_pod(ns, "web", spec))
    cluster.until_ready(ns, "web")
    eventually(
        lambda: cluster.kubectl("describe", "pod", "web", "-n", ns),
        lambda description: re.search(
            r"Started\s.*Container started|Started container app", description
        ),
    )
    running = cluster.get(ns, "pod", "web")
    status = running["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == CONDITIONS
    assert status["phase"] == "Running"
    assert status["qosClass"] == "Burstable"
    assert status["resources"] == SIZED
    assert status["allocatedResources"] == SIZED["requests"]
    assert status["hostIP"] == cluster.machines["win-2022"].address
    assert status["hostIPs"] == [{"ip": status["hostIP"]}]
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    (container,) = status["containerStatuses"]
    assert {key: container[key] for key in CONTAINER} == CONTAINER
    assert container["image"]
    assert re.fullmatch(r"\S*sha256:[0-9a-f]{64}", container["imageID"])
    assert re.fullmatch(r"winpod://\S+", container["containerID"])
    assert set(container["state"]) == {"running"}
    wide = cluster.kubectl("get", "pod", "web", "-n", ns, "-o", "wide")
    assert status["podIP"] in wide
    time.sleep(2)
    version = cluster.get(ns, "pod", "web")["metadata"]["resourceVersion"]
    assert version == running["metadata"]["resourceVersion"]
    cluster.delete_pods(ns)


def _namespace(cluster: WindowsCluster, name: str) -> str:
    cluster.plane.create_namespace(name)
    return name


def _pod(namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _workload(namespace: str, kind: str, image: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": "app", "in": namespace}
    template = {"metadata": {"labels": labels}, "spec": windows_spec(image, *SLEEP)}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "app", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


def _status(cluster: WindowsCluster, namespace: str, name: str) -> dict[str, Any]:
    return dict(cluster.get(namespace, "pod", name)["status"]["containerStatuses"][0])


def _state(cluster: WindowsCluster, namespace: str, name: str, kind: str) -> dict[str, Any]:
    found = cluster.get(namespace, "pod", name).get("status", {}).get("containerStatuses", [])
    return dict(found[0]["state"].get(kind, {})) if found else {}


def _waiting(cluster: WindowsCluster, namespace: str, name: str) -> tuple[str, str]:
    state = _state(cluster, namespace, name, "waiting")
    is_error = "Err" in state.get("reason", "") or "BackOff" in state.get("reason", "")
    return (state["reason"], state.get("message", "")) if is_error else ("", "")

"""Failures of a node in a real cluster: API server, runtime, credentials, watch and clock."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import IN_TIME, ControlPlane
from tests.e2e.controlplane.control_plane import POD_RANGE
from tests.e2e.controlplane.processes import ServerProcess
from tests.support.e2e.node_process import (
    WINPOD,
    NodeProcess,
    condition,
    found,
    is_pod_ready,
    is_ready,
    node,
    phase,
    pod,
    windows_pod,
)
from tests.support.e2e.objects import pods_path
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_cluster import BUILDS, WindowsCluster, remove_sandboxes, windows_spec
from tests.support.e2e.windows_container import link_base
from tests.support.known_objects import read

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import Unavailable
from winpod.images.base.builder import Base
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.api_objects import ApiObjectSource, ClusterInformers

IMAGE = "registry.example/app:1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
CRASHES = ("simulate", "1", "1")
LONGEST_BACK_OFF = 300
SLEEP = ("cmd", "/c", "echo here& ping -n 3600 127.0.0.1 >nul")
CRASHES_ONCE = """\
@echo off
:wait
ping -n 2 127.0.0.1 >nul
if not exist C:\\folder\\crash goto wait
del C:\\folder\\crash
type C:\\settings\\CODE
exit %CODE%
"""


@contextmanager
def simulated(
    cluster: ControlPlane, directory: Path, name: str, kubeconfig: Path | None = None, **more: Any
) -> Iterator[NodeProcess]:
    """Run a simulated node; its pods use the namespace of the same name."""
    cluster.create_namespace(name)
    access = str(kubeconfig or cluster.kubeconfig)
    arguments = ("--kubeconfig", access, "--simulated", "--name", name)
    try:
        with NodeProcess(directory, *arguments, **more) as process:
            eventually(lambda: is_ready(cluster, name))
            yield process
            cluster.kubectl("delete", "pods", "--all", "-n", name, "--force", "--grace-period=0")
    finally:
        cluster.request("DELETE", f"/api/v1/nodes/{name}")


def pod_on(name: str, pod_name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod in the node's namespace, bound to the node."""
    return windows_pod(name, pod_name, IMAGE, *command, nodeName=name, **spec)


def app_status(cluster: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    statuses = pod(cluster, namespace, name).get("status", {}).get("containerStatuses", [{}])
    return dict(statuses[0])


def test_overwritten_pod_status_is_restored(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The node controller overwrites it when a node has been silent for a while."""
    name = "overwritten"
    with simulated(control_plane, tmp_path, name):
        control_plane.apply(pod_on(name, "web"))
        eventually(lambda: is_pod_ready(control_plane, name, "web"))
        foreign = {"type": "example.test/a", "status": "A"}
        unready = {"type": "Ready", "status": "False"}
        _patch_status(control_plane, "pod", "web", unready, foreign, namespace=name)
        eventually(lambda: is_pod_ready(control_plane, name, "web"))
        assert condition(pod(control_plane, name, "web"), "example.test/a")["status"] == "A"


def test_node_marked_unknown_reports_ready_again(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    name = "unheard"
    with simulated(control_plane, tmp_path, name) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            time.sleep(21)
            _patch_status(control_plane, "node", name, {"type": "Ready", "status": "Unknown"})
            assert not is_ready(control_plane, name)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        eventually(lambda: is_ready(control_plane, name))


def test_expired_watch_is_relisted_without_loss(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    name = "forgotten"
    with simulated(control_plane, tmp_path, name) as process:
        control_plane.apply(pod_on(name, "stays"), pod_on(name, "leaves"))
        eventually(lambda: is_pod_ready(control_plane, name, "stays"))
        eventually(lambda: is_pod_ready(control_plane, name, "leaves"))
        before = app_status(control_plane, name, "stays")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            # The node's resource version is older than the watch cache of a restarted server.
            control_plane.create_namespace(f"{name}-later")
            control_plane.stop_api_server()
            control_plane.start_api_server()
            at_once = {"gracePeriodSeconds": 0}
            control_plane.request("DELETE", f"{pods_path(name)}/leaves", at_once)
            control_plane.apply(pod_on(name, "leaves"), pod_on(name, "comes"))
        finally:
            os.kill(process.pid, signal.SIGCONT)
        eventually(lambda: is_pod_ready(control_plane, name, "comes"))
        eventually(lambda: is_pod_ready(control_plane, name, "leaves"))
        assert "Watch of /api/v1/pods expired, listing again" in process.log.read_text()
        assert app_status(control_plane, name, "stays") == before


def test_revoked_token_is_read_again_from_its_file(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    name = "tokens"
    first, second = (_bound_token(control_plane, name, number) for number in ("one", "two"))
    file = tmp_path / "token"
    file.write_text(first)
    kubeconfig = _with_user(control_plane, tmp_path, {"tokenFile": "token"})
    with simulated(control_plane, tmp_path, name, kubeconfig) as process:
        control_plane.apply(pod_on(name, "stays"))
        eventually(lambda: is_pod_ready(control_plane, name, "stays"))
        before = app_status(control_plane, name, "stays")
        control_plane.kubectl("delete", "secret", "one", "-n", name)
        eventually(lambda: "Unauthorized" in process.log.read_text())
        control_plane.apply(pod_on(name, "later"))
        file.write_text(second)
        eventually(lambda: is_pod_ready(control_plane, name, "later"))
        assert app_status(control_plane, name, "stays") == before


def test_clock_jumps_do_not_affect_pods(control_plane: ControlPlane, tmp_path: Path) -> None:
    name = "jumps"
    clock = tmp_path / "clock"
    clock.write_text("+0")
    environment = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": clock,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    before = ("env", *(f"{key}={value}" for key, value in environment.items()))

    def renewed() -> str:
        return str(found(control_plane, f"{LEASES}/{name}").get("spec", {}).get("renewTime", ""))

    def restarts() -> int:
        return int(app_status(control_plane, name, "crashes").get("restartCount", 0))

    with simulated(control_plane, tmp_path, name, before=before):
        control_plane.apply(pod_on(name, "stays"), pod_on(name, "crashes", *CRASHES))
        eventually(lambda: is_pod_ready(control_plane, name, "stays"))
        eventually(lambda: restarts() >= 1)
        stays = app_status(control_plane, name, "stays")

        def jump(offset: str) -> None:
            first, crashed = renewed(), restarts()
            ahead = f"{datetime.now(UTC) + timedelta(hours=1):%FT%T}"
            control_plane.apply(pod_on(name, "ends", "simulate", "0", "6", restartPolicy="Never"))
            eventually(lambda: phase(control_plane, name, "ends") in ("Running", "Succeeded"))
            clock.write_text(offset)
            eventually(lambda: phase(control_plane, name, "ends") == "Succeeded")
            eventually(lambda: renewed() > max(first, ahead))
            eventually(lambda: restarts() > crashed, within=LONGEST_BACK_OFF + 60)
            control_plane.kubectl("delete", "pod", "ends", "-n", name, IN_TIME)

        jump("+2h")
        jump("+0")
        assert is_ready(control_plane, name)
        assert app_status(control_plane, name, "stays") == stays


async def test_volume_tokens_are_renewed_before_they_expire(control_plane: ControlPlane) -> None:
    """Uses fake clocks: the shortest lifetime that the API server grants is ten minutes."""
    control_plane.create_namespace("renewed")
    control_plane.apply(windows_pod("renewed", "web", IMAGE))
    web = read(v1.Pod, pod(control_plane, "renewed", "web"))
    now = [1000.0, 1.8e9]
    server = ApiClient(read_kubeconfig(control_plane.kubeconfig))
    objects = ApiObjectSource(server, "", ClusterInformers(server), lambda: (now[0], now[1]))

    async def token() -> str:
        return await objects.token("renewed", "default", "", 600, web)

    try:
        first = await token()
        now = [1470.0, 1.8e9]
        assert await token() == first
        now = [1490.0, 1.8e9 - 7200]
        second = await token()
        assert second != first
        now = [1500.0, 1.8e9]
        third = await token()
        assert third != second
        control_plane.stop_api_server()
        now = [2090.0, 1.8e9 + 590]
        assert await token() == third
        now = [2110.0, 1.8e9 + 590]
        with pytest.raises(Unavailable):
            await token()
    finally:
        control_plane.start_api_server()
        await server.close()


def test_node_killed_during_a_rollout_finishes_it(cluster: WindowsCluster) -> None:
    ns, name = "rollout", "win-2019"
    cluster.plane.create_namespace(ns)
    labels = {"app": "app"}
    spec = windows_spec(cluster.image, *SLEEP, node=name)
    cluster.plane.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "app", "namespace": ns},
            "spec": {
                "replicas": 3,
                "minReadySeconds": 5,  # keeps the rollout in progress long enough
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
    )
    cluster.until_rolled_out(ns, "deployment/app")
    cluster.kubectl("set", "env", "deployment/app", "-n", ns, "VERSION=two")
    cluster.until("two of three pods are updated", lambda: _updated(cluster, ns) >= 2)
    cluster.nodes[name].kill()
    cluster.nodes[name].start()
    cluster.until_rolled_out(ns, "deployment/app")
    cluster.until("the old pods are deleted", lambda: len(_pods(cluster, ns)) == 3)
    for running in _pods(cluster, ns):
        (app,) = running["status"]["containerStatuses"]
        assert "terminated" not in app["lastState"], "no running container has exited"
        version = cluster.exec(ns, running["metadata"]["name"], "cmd", "/c", "echo %VERSION%")
        assert version.strip() == "two"
    socket = cluster.nodes[name].log.parent / f"root/nodes/{name}/cri.sock"
    cluster.until("their sandboxes are removed", lambda: len(_sandboxes(socket, ns)) == 3)
    cluster.kubectl("delete", "deployment", "app", "-n", ns)


def test_runtime_killed_under_its_agent_recovers_its_containers(
    cluster: WindowsCluster, base: Base, tmp_path: Path
) -> None:
    ns, name = "apart", "win-apart"
    cluster.plane.create_namespace(ns)
    with _node_with_separate_runtime(cluster, base, tmp_path, name) as start_runtime:
        runtime = start_runtime()
        cluster.until("the node is ready", partial(is_ready, cluster.plane, name))
        probe = {"exec": {"command": ["cmd", "/c", "exit 0"]}, "periodSeconds": 5}
        probe |= {"timeoutSeconds": 60}
        spec = windows_spec(cluster.image, *SLEEP, node=name, container={"livenessProbe": probe})
        cluster.plane.apply(_pod(ns, "stays", spec))
        cluster.until_ready(ns, "stays")
        before = _app_status(cluster, ns, "stays")
        runtime.kill()
        ready = partial(condition, kind="Ready")
        cluster.until(
            "the node reports that its runtime is down",
            lambda: (
                "container runtime is down" in ready(node(cluster.plane, name)).get("message", "")
            ),
        )
        assert not is_ready(cluster.plane, name)
        start_runtime()
        cluster.until("the node is ready again", partial(is_ready, cluster.plane, name))
        assert cluster.exec(ns, "stays", "cmd", "/c", "echo again").strip() == "again"
        cluster.until(
            "its log is readable", lambda: "here" in cluster.kubectl("logs", "stays", "-n", ns)
        )
        cluster.plane.apply(_pod(ns, "new", windows_spec(cluster.image, *SLEEP, node=name)))
        cluster.until_ready(ns, "new", "stays")
        assert _app_status(cluster, ns, "stays") == before
        cluster.delete_pods(ns)
        cluster.until(
            "the sandboxes are removed", lambda: not _sandboxes(tmp_path / "cri.sock", ns)
        )


def test_pods_survive_a_minute_without_the_api_server(
    cluster: WindowsCluster, tmp_path: Path
) -> None:
    ns = "minute"
    cluster.plane.create_namespace(ns)
    settings = {"name": "settings", "namespace": ns}
    cluster.plane.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": settings, "data": {"CODE": "3"}},
        _pod(ns, "stays", windows_spec(cluster.image, *SLEEP)),
        _pod(ns, "crashes", _spec_that_crashes(cluster.image, tmp_path)),
        _pod(ns, "turns", _spec_that_turns_unready(cluster.image, tmp_path)),
    )
    cluster.until_ready(ns, "stays", "crashes", "turns")
    before = _app_status(cluster, ns, "stays")
    assert _app_status(cluster, ns, "crashes")["restartCount"] == 0
    cluster.plane.stop_api_server()
    (tmp_path / "crash").touch()
    (tmp_path / "unready").touch()
    time.sleep(60)
    cluster.plane.start_api_server()
    for name in BUILDS:
        cluster.until("the node is ready", partial(is_ready, cluster.plane, name))
    cluster.until_ready(ns, "stays")
    assert _app_status(cluster, ns, "stays") == before
    cluster.until(
        "the crash is reported", lambda: _app_status(cluster, ns, "crashes")["restartCount"]
    )
    assert _app_status(cluster, ns, "crashes")["lastState"]["terminated"]["exitCode"] == 3
    ready = partial(condition, kind="Ready")
    cluster.until(
        "the failed probe is reported",
        lambda: ready(cluster.get(ns, "pod", "turns"))["status"] == "False",
    )
    assert _app_status(cluster, ns, "turns")["restartCount"] == 0
    events = cluster.kubectl("get", "events", "-n", ns)
    assert "Marking for deletion" not in events, "the taint manager evicted a pod"
    cluster.delete_pods(ns)


@contextmanager
def _node_with_separate_runtime(
    cluster: WindowsCluster, base: Base, folder: Path, name: str
) -> Iterator[Callable[[], ServerProcess]]:
    """Run an agent on a machine of the cluster; yield a function that starts its runtime."""
    machine, root = cluster.machines["win-2022"], folder / "runtime"
    root.mkdir()
    link_base(root, base)
    config = folder / "config.toml"
    config.write_text("[runtime]\nwarm_shells = 0\n")
    prefix = (*machine.entering, "env", f"WINPOD_CONFIG={config}")
    serving = cluster.plane.serving_certificate(f"{name}-serving", f"IP:{machine.address}")
    kubeconfig = cluster.plane.kubeconfig_for(f"system:node:{name}", "system:nodes")
    running: list[ServerProcess] = []

    def start_runtime() -> ServerProcess:
        command = [
            *(*prefix, *WINPOD, "runtime", "--host-build", "2022", "--root", str(root)),
            *("--socket", str(folder / "cri.sock")),
        ]
        running.append(ServerProcess("runtime", command, folder / "runtime.log"))
        return running[-1]

    agent = NodeProcess(
        folder,
        *("--kubeconfig", str(kubeconfig), "--name", name, "--build", "2022"),
        *("--runtime", str(folder / "cri.sock"), "--port", "10251"),
        *("--node-ip", machine.address, "--cluster-cidr", POD_RANGE),
        *("--tls-cert-file", str(serving.certificate)),
        *("--tls-private-key-file", str(serving.key)),
        before=prefix,
    )
    try:
        with agent:
            yield start_runtime
    finally:
        cluster.plane.request("DELETE", f"/api/v1/nodes/{name}")
        remove_sandboxes(folder / "cri.sock")
        for process in running:
            process.stop()


def _pod(namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _spec_that_crashes(image: str, folder: Path) -> dict[str, Any]:
    """A container that crashes once when a file exists.

    Its exit code comes from a ConfigMap, as a variable and as a file.
    """
    (folder / "app.cmd").write_text(CRASHES_ONCE.replace("\n", "\r\n"))
    spec = windows_spec(image, "cmd", "/c", "C:\\folder\\app.cmd")
    _mount(spec, "folder", hostPath={"path": str(folder)})
    _mount(spec, "settings", configMap={"name": "settings"})
    spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    return spec


def _spec_that_turns_unready(image: str, folder: Path) -> dict[str, Any]:
    """A container that becomes unready when a file exists."""
    line = "if exist C:\\folder\\unready exit 1"
    probe = {"exec": {"command": ["cmd", "/c", line]}, "timeoutSeconds": 60}
    probe |= {"periodSeconds": 2, "failureThreshold": 1}
    spec = windows_spec(image, *SLEEP, container={"readinessProbe": probe})
    _mount(spec, "folder", hostPath={"path": str(folder)})
    return spec


def _mount(spec: dict[str, Any], name: str, **volume: Any) -> None:
    """Mount a volume in the only container."""
    (container,) = spec["containers"]
    spec.setdefault("volumes", []).append({"name": name, **volume})
    mount = {"name": name, "mountPath": f"C:\\{name}"}
    container.setdefault("volumeMounts", []).append(mount)


def _app_status(cluster: WindowsCluster, namespace: str, name: str) -> dict[str, Any]:
    return dict(cluster.get(namespace, "pod", name)["status"]["containerStatuses"][0])


def _updated(cluster: WindowsCluster, namespace: str) -> int:
    return int(cluster.get(namespace, "deployment", "app")["status"].get("updatedReplicas", 0))


def _pods(cluster: WindowsCluster, namespace: str) -> list[dict[str, Any]]:
    return list(json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"])


def _sandboxes(socket: Path, namespace: str) -> list[str]:
    async def listed() -> list[str]:
        client = CriClient(f"unix:{socket}")
        try:
            answer = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
        finally:
            await client.close()
        return [item.id for item in answer.items if item.metadata.namespace == namespace]

    return asyncio.run(listed())


def _patch_status(
    cluster: ControlPlane, kind: str, name: str, *conditions: dict[str, str], namespace: str = ""
) -> None:
    patch = json.dumps({"status": {"conditions": conditions}})
    scope = ("-n", namespace) if namespace else ()
    cluster.kubectl("patch", kind, name, *scope, "--subresource=status", "-p", patch)


def _bound_token(cluster: ControlPlane, namespace: str, secret: str) -> str:
    """Token of a cluster-admin service account, valid as long as the secret exists."""
    cluster.create_namespace(namespace)
    account = {"name": "fleet", "namespace": namespace}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": "v1", "kind": "Secret", "metadata": account | {"name": secret}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"e2e:{namespace}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    )
    bound = ("--bound-object-kind=Secret", f"--bound-object-name={secret}")
    return cluster.kubectl("create", "token", "fleet", "-n", namespace, *bound)


def _with_user(cluster: ControlPlane, directory: Path, user: dict[str, str]) -> Path:
    """Write a kubeconfig with these user credentials."""
    document = json.loads(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = user
    path = directory / "kubeconfig"
    path.write_text(json.dumps(document))
    return path

"""The kubelet with a real runtime and real Windows programs in its pods."""

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.cri_node import Node
from tests.support.e2e.microvms import link_kit
from tests.support.e2e.runtime_process import RuntimeProcess
from tests.support.e2e.windows_programs import cache
from tests.support.known_objects import encoded, node_config_in, read
from tests.support.small_node import SmallNode

from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.compute.hypervisor.assets import build_assets
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import Base
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.eviction.thresholds import EvictionThresholds, ThresholdValue
from winpod.kubelet.runtime_status import RuntimeContainer

UID = "uid-web"
NO_EVICTION = EvictionThresholds(ThresholdValue(), ThresholdValue(), ThresholdValue())


@pytest.fixture
async def runtime(tmp_path: Path, base: Base) -> AsyncIterator[RuntimeProcess]:
    async with RuntimeProcess.running(tmp_path, base) as runtime:
        yield runtime


@pytest.fixture
def node(tmp_path: Path) -> SmallNode:
    return SmallNode(
        Node(tmp_path), node_config_in(tmp_path / "node", thresholds=NO_EVICTION), patience=300
    )


def make_pod(runtime: RuntimeProcess, *containers: dict[str, Any], **spec: Any) -> v1.Pod:
    image = {"image": f"oci:{runtime.folder}/images:app", "imagePullPolicy": "IfNotPresent"}
    spec["containers"] = [image | container for container in containers]
    spec["initContainers"] = [image | container for container in spec.get("initContainers", ())]
    metadata = {"name": "web", "namespace": "shop", "uid": UID, "generation": 1}
    return read(v1.Pod, {"metadata": metadata, "spec": spec})


def in_cmd(script: str) -> list[str]:
    return ["cmd", "/s", "/c", script]


def deleted(pod: v1.Pod) -> v1.Pod:
    data = pod.to_dict()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    data["metadata"] |= {"deletionTimestamp": now, "deletionGracePeriodSeconds": 60}
    return read(v1.Pod, data)


def read_log(container: RuntimeContainer | None) -> str:
    assert container
    lines = Path(container.log_path).read_text().splitlines()
    return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)


async def test_init_containers_volumes_environment_and_termination_message(
    runtime: RuntimeProcess, node: SmallNode
) -> None:
    shared = {"name": "shared", "mountPath": "C:\\shared"}
    node.objects.config_maps["shop/settings"] = read(v1.ConfigMap, {"data": {"mode": "fast"}})
    mode = {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}}
    first = in_cmd("echo made by init>C:\\shared\\file")
    app = in_cmd(
        "type C:\\shared\\file & echo %MODE% & echo no disk>C:\\dev\\termination-log & exit 3"
    )
    pod = make_pod(
        runtime,
        {"name": "app", "command": app, "volumeMounts": [shared], "env": [mode]},
        initContainers=[{"name": "first", "command": first, "volumeMounts": [shared]}],
        volumes=[{"name": "shared", "emptyDir": {}}],
        restartPolicy="Never",
    )
    async with node.kubelet(runtime.client) as kubelet:
        kubelet.update_pod(pod)
        await node.until(lambda: node.reporter.last(UID).phase == "Failed")
        (app_status,) = node.reporter.last(UID).containerStatuses
        terminated = app_status.state.terminated
        assert (terminated.exitCode, terminated.reason) == (3, "Error")
        assert terminated.message.strip() == "no disk"
        log = await asyncio.to_thread(read_log, kubelet.find_container("shop", "web", "app"))
        assert [line.strip() for line in log.splitlines()] == ["made by init", "fast"]
        kubelet.update_pod(deleted(pod))
        await node.until(lambda: node.reporter.deleted == [UID])
    assert await runtime.pods() == []


async def test_exec_probe_sets_readiness_and_pod_survives_a_runtime_kill(
    runtime: RuntimeProcess, node: SmallNode
) -> None:
    alive = {"exec": {"command": in_cmd("if not exist C:\\data\\alive exit 1")}, "periodSeconds": 1}
    stop = {"preStop": {"exec": {"command": in_cmd("echo stopping>C:\\data\\stopped")}}}
    app = {
        "name": "app",
        "command": ["C:\\hostile.exe", "stays"],
        "readinessProbe": {**alive, "timeoutSeconds": 60},
        "lifecycle": stop,
        "volumeMounts": [{"name": "data", "mountPath": "C:\\data"}],
    }
    volume = {"name": "data", "hostPath": {"path": str(runtime.data)}}
    pod = make_pod(runtime, app, volumes=[volume], terminationGracePeriodSeconds=60)
    client = CriClient(f"unix:{runtime.socket}")
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod)
        await node.until(lambda: node.reporter.last(UID).phase == "Running")
        await node.until(lambda: "Unhealthy" in node.reporter.reasons(UID))
        assert not is_ready(node)
        await asyncio.to_thread((runtime.data / "alive").touch)
        await node.until(lambda: is_ready(node))
        before = node.reporter.last(UID).containerStatuses[0].containerID
        await runtime.end(signal.SIGKILL)
        await runtime.start()
        await asyncio.sleep(2)
        assert is_ready(node)
        assert node.reporter.last(UID).containerStatuses[0].containerID == before
        kubelet.update_pod(deleted(pod))
        await node.until(lambda: node.reporter.deleted == [UID])
        assert await asyncio.to_thread((runtime.data / "stopped").exists)
    await client.close()


@pytest.fixture
async def runtime_with_microvms(
    tmp_path: Path, base: Base, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RuntimeProcess]:
    """A runtime that can run microVMs, emulated without KVM."""
    await asyncio.to_thread(build_assets, cache() / "root")
    monkeypatch.setenv(ALLOW, "1")
    (tmp_path / "root").mkdir()
    link_kit(tmp_path / "root")
    async with RuntimeProcess.running(tmp_path, base) as runtime:
        yield runtime


async def assert_secrets_are_readable(
    runtime: RuntimeProcess, node: SmallNode, **spec: Any
) -> None:
    """Read the pod's files as ContainerUser, mounted in every supported way."""
    login = {"data": encoded(password="correct horse")}
    node.objects.secrets["shop/login"] = read(v1.Secret, login)
    mounts = [
        {"name": "login", "mountPath": "C:\\login"},
        {"name": "login", "mountPath": "C:\\one\\password", "subPath": "password"},
        {"name": "scratch", "mountPath": "C:\\scratch"},
    ]
    script = "type C:\\login\\password & echo. & type C:\\one\\password & echo. & echo "
    script += "kept>C:\\scratch\\file & type C:\\scratch\\file & echo words>C:\\words"
    app = {
        "name": "app",
        "command": in_cmd(script),
        "volumeMounts": mounts,
        "securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}},
        "terminationMessagePath": "C:\\words",
    }
    volumes = [
        {"name": "login", "secret": {"secretName": "login"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    pod = make_pod(runtime, app, volumes=volumes, restartPolicy="Never", **spec)
    pods = node.node_config.root / "pods"
    await asyncio.to_thread(pods.mkdir, parents=True)
    await asyncio.to_thread(pods.chmod, 0o755)
    async with node.kubelet(runtime.client) as kubelet:
        kubelet.update_pod(pod)
        await node.until(lambda: node.reporter.last(UID).phase == "Succeeded")
        assert (await asyncio.to_thread(pods.stat)).st_mode & 0o777 == 0o700
        log = await asyncio.to_thread(read_log, kubelet.find_container("shop", "web", "app"))
        assert [line.strip() for line in log.splitlines()] == ["correct horse"] * 2 + ["kept"]
        (status,) = node.reporter.last(UID).containerStatuses
        assert status.state.terminated.message.strip() == "words"
        kubelet.update_pod(deleted(pod))
        await node.until(lambda: node.reporter.deleted == [UID])


async def test_container_user_reads_secrets_that_host_users_cannot(
    runtime: RuntimeProcess, node: SmallNode
) -> None:
    await assert_secrets_are_readable(runtime, node)


async def test_microvm_reads_secrets_that_host_users_cannot(
    runtime_with_microvms: RuntimeProcess, node: SmallNode
) -> None:
    await assert_secrets_are_readable(
        runtime_with_microvms, node, runtimeClassName="runhcs-wcow-hypervisor"
    )


def is_ready(node: SmallNode) -> bool:
    conditions = node.reporter.last(UID).conditions or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)

"""The engine over a real runtime, with real Windows programs in its pods."""

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as v1
from tests.cri.test_life import Node
from tests.e2e.runtime_process import RuntimeProcess
from tests.node.known_objects import facts_in, read
from tests.node.small_node import SmallNode

from winpod.cri.rpc import Client
from winpod.images.base import Base
from winpod.node.seen import ContainerSeen
from winpod.node.thresholds import Bound, Thresholds

UID = "uid-web"
ROOMY = Thresholds(Bound(), Bound(), Bound())


@pytest.fixture
async def machine(tmp_path: Path, base: Base) -> AsyncIterator[RuntimeProcess]:
    async with RuntimeProcess.running(tmp_path, base) as machine:
        yield machine


@pytest.fixture
def node(tmp_path: Path) -> SmallNode:
    return SmallNode(Node(tmp_path), facts_in(tmp_path / "node", thresholds=ROOMY), patience=300)


def pod_of(machine: RuntimeProcess, *containers: dict[str, Any], **spec: Any) -> v1.Pod:
    image = {"image": f"oci:{machine.folder}/images:app", "imagePullPolicy": "IfNotPresent"}
    spec["containers"] = [image | one for one in containers]
    spec["initContainers"] = [image | one for one in spec.get("initContainers", ())]
    metadata = {"name": "web", "namespace": "shop", "uid": UID, "generation": 1}
    return read(v1.Pod, {"metadata": metadata, "spec": spec})


def in_cmd(script: str) -> list[str]:
    return ["cmd", "/s", "/c", script]


def deleted(pod: v1.Pod) -> v1.Pod:
    data = pod.to_dict()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    data["metadata"] |= {"deletionTimestamp": now, "deletionGracePeriodSeconds": 60}
    return read(v1.Pod, data)


def log_of(container: ContainerSeen | None) -> str:
    assert container
    lines = Path(container.log_path).read_text().splitlines()
    return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)


async def test_init_containers_volumes_environment_and_last_words(
    machine: RuntimeProcess, node: SmallNode
) -> None:
    shared = {"name": "shared", "mountPath": "C:\\shared"}
    node.objects.config_maps["shop/settings"] = read(v1.ConfigMap, {"data": {"mode": "fast"}})
    mode = {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}}
    first = in_cmd("echo made by init>C:\\shared\\file")
    app = in_cmd(
        "type C:\\shared\\file & echo %MODE% & echo no disk>C:\\dev\\termination-log & exit 3"
    )
    pod = pod_of(
        machine,
        {"name": "app", "command": app, "volumeMounts": [shared], "env": [mode]},
        initContainers=[{"name": "first", "command": first, "volumeMounts": [shared]}],
        volumes=[{"name": "shared", "emptyDir": {}}],
        restartPolicy="Never",
    )
    async with node.engine(machine.client) as engine:
        engine.set(pod)
        await node.until(lambda: node.said.last(UID).phase == "Failed")
        (app_status,) = node.said.last(UID).containerStatuses
        end = app_status.state.terminated
        assert (end.exitCode, end.reason) == (3, "Error")
        assert end.message.strip() == "no disk"
        said = await asyncio.to_thread(log_of, engine.find_container("shop", "web", "app"))
        assert [line.strip() for line in said.splitlines()] == ["made by init", "fast"]
        engine.set(deleted(pod))
        await node.until(lambda: node.said.away == [UID])
    assert await machine.pods() == []


async def test_a_probe_in_the_container_decides_and_a_kill_of_the_runtime_changes_nothing(
    machine: RuntimeProcess, node: SmallNode
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
    volume = {"name": "data", "hostPath": {"path": str(machine.data)}}
    pod = pod_of(machine, app, volumes=[volume], terminationGracePeriodSeconds=60)
    client = Client(f"unix:{machine.socket}")
    async with node.engine(client) as engine:
        engine.set(pod)
        await node.until(lambda: node.said.last(UID).phase == "Running")
        await node.until(lambda: "Unhealthy" in node.said.reasons(UID))
        assert not is_ready(node)
        await asyncio.to_thread((machine.data / "alive").touch)
        await node.until(lambda: is_ready(node))
        before = node.said.last(UID).containerStatuses[0].containerID
        await machine.end(signal.SIGKILL)
        await machine.start()
        await asyncio.sleep(2)
        assert is_ready(node)
        assert node.said.last(UID).containerStatuses[0].containerID == before
        engine.set(deleted(pod))
        await node.until(lambda: node.said.away == [UID])
        assert await asyncio.to_thread((machine.data / "stopped").exists)
    await client.close()


def is_ready(node: SmallNode) -> bool:
    conditions = node.said.last(UID).conditions or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)

"""Pods on a node, over the real CRI server, with simulated containers."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.cri.test_images import push
from tests.node.known_objects import read
from tests.node.small_node import PutBack, SmallNode, pod_of, pulled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.engine import Engine
from winpod.node.pods import with_fields

UID = "uid-web"
BELOW_A_FILE = f"{__file__}/below"
NOTHING: Any = v1.ContainerStatus(
    name="", image="", imageID="", ready=False, restartCount=0, state=v1.ContainerState()
)


@pytest.fixture
async def engine(node: SmallNode, client: Client) -> AsyncIterator[Engine]:
    async with node.engine(client) as engine:
        yield engine


def changed(pod: v1.Pod, *, metadata: dict[str, Any] | None = None, **spec: Any) -> v1.Pod:
    """The pod with other fields, as a watch would bring it."""
    data = pod.to_dict()
    data["metadata"] |= metadata or {}
    data["spec"] |= spec
    return read(v1.Pod, data)


def deleted(pod: v1.Pod, grace: int = 30) -> v1.Pod:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stamps = {"deletionTimestamp": now, "deletionGracePeriodSeconds": grace}
    return changed(pod, metadata=stamps)


def container(status: v1.PodStatus, name: str = "app") -> Any:
    listed = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return next((one for one in listed if one.name == name), NOTHING)


def is_ready(status: v1.PodStatus) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())


async def listed(client: Client) -> tuple[int, int]:
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    containers = await client.call("ListContainers", api.ListContainersRequest())
    return len(sandboxes.items), len(containers.containers)


async def test_a_pod_runs_and_leaves_nothing_when_it_is_deleted(
    node: SmallNode, client: Client, engine: Engine, image: str
) -> None:
    pod = pod_of(image)
    engine.set(pod)
    await node.until(lambda: is_ready(node.said.last(UID)))
    assert node.said.phases(UID) == ["Pending", "Running"]
    assert node.said.reasons(UID) == ["Pulled", "Created", "Started"]
    status = node.said.last(UID)
    assert status.podIP
    assert container(status).containerID.startswith("winpod://")
    assert "@sha256:" in container(status).imageID
    found = engine.find_container("shop", "web", "app")
    assert found is not None
    assert Path(found.log_path).parent == node.facts.log_root / "shop_web_uid-web/app"
    engine.set(deleted(pod))
    await node.until(lambda: node.said.away == [UID])
    assert container(node.said.last(UID)).state.terminated.exitCode == 0
    assert node.said.last(UID).phase == "Succeeded"
    assert await listed(client) == (0, 0)
    assert not list((node.facts.root / "pods").iterdir())
    assert not list(node.facts.log_root.iterdir())
    assert engine.pods() == []


async def test_a_job_succeeds_or_fails_and_keeps_its_logs(
    node: SmallNode, client: Client, engine: Engine, image: str
) -> None:
    engine.set(pod_of(image, "good", "simulate 0 0.1", restartPolicy="Never"))
    engine.set(pod_of(image, "bad", "simulate 3 0.1", "serve", restartPolicy="Never"))
    await node.until(lambda: node.said.last("uid-good").phase == "Succeeded")
    await node.until(lambda: container(node.said.last("uid-bad")).state.terminated)
    assert node.said.last("uid-bad").phase == "Running"
    assert container(node.said.last("uid-good")).state.terminated.reason == "Completed"
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    states = {item.metadata.name: item.state for item in sandboxes.items}
    assert states["bad"] == api.SANDBOX_READY
    await until_true(lambda: not_ready(client, "good"))
    found = engine.find_container("shop", "good", "app")
    assert found is not None
    assert await asyncio.to_thread(Path(found.log_path).exists)


async def not_ready(client: Client, name: str) -> bool:
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    return all(
        item.state == api.SANDBOX_NOTREADY for item in sandboxes.items if item.metadata.name == name
    )


async def until_true(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_container_that_fails_is_started_again_ever_later(
    node: SmallNode, client: Client, engine: Engine, image: str
) -> None:
    engine.set(pod_of(image, "web", "simulate 7 0"))
    await node.until(lambda: container(node.said.last(UID)).restartCount == 3)
    told = [container(status) for status in node.said.statuses[UID] if status.containerStatuses]
    waiting = [one for one in told if one.state.waiting and one.state.waiting.message]
    assert {one.state.waiting.reason for one in waiting} == {"CrashLoopBackOff"}
    assert waiting[-1].lastState.terminated.exitCode == 7
    assert "restarting failed container=app pod=web_shop(uid-web)" in (
        waiting[-1].state.waiting.message
    )
    assert node.said.last(UID).phase == "Running"
    assert node.said.reasons(UID).count("BackOff") >= 2
    assert (await listed(client))[1] <= 3


async def test_init_containers_run_in_order_and_sidecars_go_on(
    node: SmallNode, engine: Engine, image: str
) -> None:
    engine.set(
        pod_of(
            image,
            "web",
            "simulate 0 0.3",
            restartPolicy="Never",
            initContainers=[
                {"name": "first", "command": ["simulate", "0", "0.1"]},
                {"name": "side", "restartPolicy": "Always", "command": ["serve"]},
                {"name": "third", "command": ["simulate", "0", "0.1"]},
            ],
        )
    )
    await node.until(lambda: node.said.last(UID).phase == "Succeeded")
    started = [who for _, reason, _, who in node.said.events if reason == "Started"]
    assert started == ["first", "side", "third", "app"]
    assert [one.name for one in node.said.last(UID).initContainerStatuses] == [
        "first",
        "side",
        "third",
    ]
    assert container(node.said.last(UID), "side").state.terminated
    pending = [s for s in node.said.statuses[UID] if s.phase == "Pending"]
    assert container(pending[0]).state.waiting.reason == "PodInitializing"


async def test_an_init_container_that_fails_for_good_fails_the_pod(
    node: SmallNode, engine: Engine, image: str
) -> None:
    failing = {"name": "first", "command": ["simulate", "9", "0"]}
    engine.set(pod_of(image, initContainers=[failing], restartPolicy="Never"))
    await node.until(lambda: node.said.last(UID).phase == "Failed")
    assert container(node.said.last(UID)).state.waiting.reason == "PodInitializing"


async def test_probes_make_ready_and_end_what_no_longer_lives(
    node: SmallNode, engine: Engine, image: str
) -> None:
    probe = {"exec": {"command": ["simulate", "0"]}, "periodSeconds": 1}
    dead = {"exec": {"command": ["simulate", "1"]}, "periodSeconds": 1, "failureThreshold": 1}
    engine.set(pod_of(image, "good", with_each=[{"readinessProbe": probe, "startupProbe": probe}]))
    engine.set(pod_of(image, "dead", with_each=[{"livenessProbe": dead}]))
    engine.set(pod_of(image, "deaf", with_each=[{"readinessProbe": dead}]))
    await node.until(lambda: is_ready(node.said.last("uid-good")))
    await node.until(lambda: container(node.said.last("uid-dead")).restartCount)
    await node.until(lambda: "Unhealthy" in node.said.reasons("uid-deaf"))
    await node.until(lambda: node.said.last("uid-deaf").phase == "Running")
    assert (
        "uid-dead",
        "Killing",
        "Container app failed liveness probe, will be restarted",
        "app",
    ) in (node.said.events)
    assert not any(is_ready(status) for status in node.said.statuses["uid-deaf"])
    unhealthy = [e for e in node.said.events if e[:2] == ("uid-deaf", "Unhealthy")]
    assert unhealthy[0][2].startswith("Readiness probe failed: simulated: simulate 1")


async def test_a_pod_that_does_not_fit_is_rejected(
    node: SmallNode, engine: Engine, image: str
) -> None:
    large = {"resources": {"requests": {"cpu": "3"}}}
    engine.set(pod_of(image, "one", with_each=[large]))
    engine.set(pod_of(image, "two", with_each=[large]))
    await node.until(lambda: bool(node.said.last("uid-two").phase))
    status = node.said.last("uid-two")
    assert (status.phase, status.reason) == ("Failed", "OutOfcpu")
    assert status.message == (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 3000, "
        "capacity: 4000"
    )
    engine.set(deleted(pod_of(image, "two", with_each=[large])))
    await node.until(lambda: node.said.away == ["uid-two"])
    await node.until(lambda: node.said.last("uid-one").phase == "Running")


async def test_a_pod_past_its_deadline_has_failed(
    node: SmallNode, engine: Engine, image: str
) -> None:
    engine.set(pod_of(image, activeDeadlineSeconds=1))
    await node.until(lambda: node.said.last(UID).phase == "Failed")
    await node.until(lambda: container(node.said.last(UID)).state.terminated)
    status = node.said.last(UID)
    assert status.reason == "DeadlineExceeded"
    assert "DeadlineExceeded" in node.said.reasons(UID)


async def test_an_image_that_is_not_there_keeps_a_container_waiting(
    node: SmallNode, client: Client, engine: Engine, registry: str
) -> None:
    engine.set(pod_of(f"{registry}/gone:1"))
    await node.until(lambda: "ErrImagePull" in waits(node.said.statuses.get(UID, [])))
    await node.until(lambda: "ImagePullBackOff" in waits(node.said.statuses[UID]))
    assert node.said.last(UID).phase == "Pending"
    engine.set(deleted(pod_of(f"{registry}/gone:1")))
    await node.until(lambda: node.said.away == [UID])
    assert await listed(client) == (0, 0)


def waits(statuses: list[v1.PodStatus]) -> set[str]:
    states = [container(s).state for s in statuses if s.containerStatuses]
    return {state.waiting.reason for state in states if state.waiting}


async def test_a_missing_config_map_keeps_a_container_waiting_until_it_is_there(
    node: SmallNode, engine: Engine, image: str
) -> None:
    source = {"configMapKeyRef": {"name": "settings", "key": "mode"}}
    engine.set(pod_of(image, with_each=[{"env": [{"name": "MODE", "valueFrom": source}]}]))
    await node.until(lambda: "CreateContainerConfigError" in waits(node.said.statuses.get(UID, [])))
    assert container(node.said.last(UID)).state.waiting.message == 'configmap "settings" not found'


async def test_hooks_run_and_take_their_time_from_the_grace(
    node: SmallNode, engine: Engine, image: str
) -> None:
    slow = {"preStop": {"exec": {"command": ["simulate", "0", "0.5"]}}}
    broken = {"postStart": {"exec": {"command": ["simulate", "1"]}}}
    good = pod_of(image, "good", with_each=[{"lifecycle": slow}])
    engine.set(good)
    engine.set(pod_of(image, "broken", with_each=[{"lifecycle": broken}], restartPolicy="Never"))
    await node.until(lambda: is_ready(node.said.last("uid-good")))
    await node.until(lambda: node.said.last("uid-broken").phase in ("Succeeded", "Failed"))
    assert "FailedPostStartHook" in node.said.reasons("uid-broken")
    began = asyncio.get_running_loop().time()
    engine.set(deleted(good))
    await node.until(lambda: "uid-good" in node.said.away)
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_a_shorter_grace_ends_a_pod_that_is_ending(
    node: SmallNode, engine: Engine, image: str
) -> None:
    hook = {"preStop": {"sleep": {"seconds": 500}}}
    pod = pod_of(image, with_each=[{"lifecycle": hook}], terminationGracePeriodSeconds=600)
    engine.set(pod)
    await node.until(lambda: is_ready(node.said.last(UID)))
    engine.set(deleted(pod, grace=600))
    await node.until(lambda: "Killing" in node.said.reasons(UID))
    engine.set(deleted(pod, grace=0))
    await node.until(lambda: node.said.away == [UID])


async def test_a_sandbox_that_is_lost_is_made_again(
    node: SmallNode, client: Client, engine: Engine, image: str
) -> None:
    engine.set(pod_of(image))
    await node.until(lambda: is_ready(node.said.last(UID)))
    before = container(node.said.last(UID)).containerID
    (sandbox,) = (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items
    await client.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))
    await node.until(
        lambda: (
            is_ready(node.said.last(UID)) and container(node.said.last(UID)).containerID != before
        )
    )
    assert "SandboxChanged" in node.said.reasons(UID)
    assert container(node.said.last(UID)).restartCount == 1


async def test_a_restart_of_the_agent_neither_restarts_nor_loses_a_pod(
    node: SmallNode, client: Client, image: str
) -> None:
    probe = {"exec": {"command": ["simulate", "0"]}, "periodSeconds": 1}
    pod = pod_of(image, with_each=[{"readinessProbe": probe}])
    async with node.engine(client) as engine:
        engine.set(pod)
        engine.set(pod_of(image, "orphan", terminationGracePeriodSeconds=1))
        await node.until(lambda: is_ready(node.said.last(UID)))
        await node.until(lambda: is_ready(node.said.last("uid-orphan")))
        assert starts_timed(engine) == 2
    before = node.said.last(UID)
    said = len(node.said.statuses[UID])
    async with node.engine(client) as engine:
        await engine.replace([with_fields(pod, status=before)])
        await node.until(lambda: "uid-orphan" in node.said.away)
        await until_true(lambda: has_pods(engine, 1))
        assert all(is_ready(status) for status in node.said.statuses[UID][said:])
        found = engine.find_container("shop", "web", "app")
        assert found is not None
        assert f"winpod://{found.id}" == container(before).containerID
        assert starts_timed(engine) == 0
    assert await listed(client) == (1, 1)


def starts_timed(engine: Engine) -> float:
    samples = [sample for family in engine.timings.families() for sample in family.samples]
    name = "kubelet_pod_start_duration_seconds_count"
    return next(sample.value for sample in samples if sample.name == name)


async def has_pods(engine: Engine, number: int) -> bool:
    return len(engine.pods()) == number


async def test_pods_keep_their_status_while_the_runtime_is_away(
    node: SmallNode, home: Path, registry: str
) -> None:
    image = await push(home, f"{registry}/app:1", "2022")
    async with node.runtime.running() as client:
        await pulled(client, image)
    client = Client(f"unix:{node.runtime.root}/cri.sock")
    async with node.engine(client) as engine:
        async with node.runtime.running():
            engine.set(pod_of(image))
            await node.until(lambda: is_ready(node.said.last(UID)))
            before = container(node.said.last(UID)).containerID
        said = len(node.said.statuses[UID])
        await asyncio.sleep(1.5)
        assert len(node.said.statuses[UID]) == said
        async with node.runtime.running() as direct:
            engine.set(pod_of(image, "late"))
            await node.until(lambda: is_ready(node.said.last("uid-late")))
            id_ = before.removeprefix("winpod://")
            stop = api.StopContainerRequest(container_id=id_, timeout=1)
            await direct.call("StopContainer", stop)
            await node.until(lambda: container(node.said.last(UID)).restartCount == 1)
    await client.close()


async def test_an_ephemeral_container_is_started_once(
    node: SmallNode, engine: Engine, image: str
) -> None:
    pod = pod_of(image)
    engine.set(pod)
    await node.until(lambda: is_ready(node.said.last(UID)))
    debugger = {"name": "debug", "image": image, "command": ["simulate", "5", "0.1"]}
    engine.set(changed(pod, ephemeralContainers=[debugger]))
    await node.until(
        lambda: bool(debugging(node.said.last(UID)) and debugging(node.said.last(UID)).terminated)
    )
    assert debugging(node.said.last(UID)).terminated.exitCode == 5
    assert node.said.last(UID).phase == "Running"


def debugging(status: v1.PodStatus) -> Any:
    listed = status.ephemeralContainerStatuses or ()
    return next((one.state for one in listed), None)


async def test_resources_change_in_place_when_there_is_room(
    node: SmallNode, client: Client, engine: Engine, image: str
) -> None:
    def sized(cpu: str) -> v1.Pod:
        return pod_of(
            image, with_each=[{"resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}}]
        )

    engine.set(sized("1"))
    await node.until(lambda: is_ready(node.said.last(UID)))
    before = container(node.said.last(UID)).containerID
    engine.set(sized("2"))
    await node.until(lambda: "ResizeCompleted" in node.said.reasons(UID))
    await node.until(
        lambda: (
            container(node.said.last(UID)).allocatedResources == {"cpu": "2"}
            and not any("Resize" in c.type for c in node.said.last(UID).conditions)
        )
    )
    assert container(node.said.last(UID)).containerID == before
    request = api.ContainerStatusRequest(container_id=before.removeprefix("winpod://"))
    limits = (await client.call("ContainerStatus", request)).status.resources.windows
    assert limits.cpu_maximum == 5000
    engine.set(sized("40"))
    await node.until(lambda: any(c.reason == "Infeasible" for c in node.said.last(UID).conditions))
    assert container(node.said.last(UID)).allocatedResources == {"cpu": "2"}


async def test_a_hundred_pods_run_beside_each_other(
    node: SmallNode, client: Client, engine: Engine, image: str
) -> None:
    names = [f"p{n}" for n in range(100)]
    for name in names:
        engine.set(pod_of(image, name))
    await node.until(lambda: all(is_ready(node.said.last(f"uid-{name}")) for name in names))
    assert await listed(client) == (100, 100)


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"runtimeClassName": "runhcs-wcow-hypervisor-17763"},
            "FailedCreatePodSandBox",
            "Failed to create pod sandbox: .*asks for hypervisor isolation",
        ),
        (
            {"runtimeClassName": "runsc"},
            "FailedCreatePodSandBox",
            'no runtime for "runsc" is configured',
        ),
        (
            {
                "hostNetwork": True,
                "securityContext": {"windowsOptions": {"hostProcess": True}},
            },
            "FailedCreatePodSandBox",
            "no Windows host to be part of",
        ),
        (
            {"volumes": [{"name": "share", "csi": {"driver": "smb.csi.k8s.io"}}]},
            "FailedMount",
            "of a kind that this node cannot mount: csi",
        ),
        (
            {
                "volumes": [
                    {"name": "file", "hostPath": {"path": BELOW_A_FILE, "type": "FileOrCreate"}}
                ]
            },
            "FailedMount",
            'MountVolume.SetUp failed for volume "file": File exists',
        ),
    ],
    ids=["hypervisor", "unknown handler", "host process", "volume", "file"],
)
async def test_a_pod_that_cannot_start_here_waits_and_says_why(
    node: SmallNode, client: Client, engine: Engine, spec: Any, reason: str, words: str
) -> None:
    pod = pod_of("app:1", **spec)
    engine.set(pod)
    await node.until(lambda: reason in node.said.reasons(UID))
    told = next(message for _, told, message, _ in node.said.events if told == reason)
    assert re.search(words, told), told
    assert node.said.last(UID).phase == "Pending"
    engine.set(deleted(pod))
    await node.until(lambda: node.said.away == [UID])
    assert await listed(client) == (0, 0)


async def test_other_probes_wait_until_a_container_has_started(
    node: SmallNode, engine: Engine, image: str
) -> None:
    slow = {"exec": {"command": ["simulate", "1"]}, "periodSeconds": 1, "failureThreshold": 2}
    dead = {"exec": {"command": ["simulate", "2"]}, "failureThreshold": 1}
    both = {"startupProbe": {**slow, "terminationGracePeriodSeconds": 1}, "livenessProbe": dead}
    engine.set(pod_of(image, with_each=[both]))
    killed = "Container app failed startup probe, will be restarted"
    await node.until(lambda: (UID, "Killing", killed, "app") in node.said.events)
    said = [message for _, reason, message, _ in node.said.events if reason == "Unhealthy"]
    assert [message.partition(":")[0] for message in said] == ["Startup probe failed"] * 2
    assert not any(container(status).started for status in node.said.statuses[UID])


async def test_a_node_without_processes_answers_probes_of_the_network_itself(
    node: SmallNode, client: Client, image: str
) -> None:
    node.facts = replace(node.facts, is_simulated=True)
    probe = {"httpGet": {"port": 80}}
    async with node.engine(client) as engine:
        engine.set(pod_of(image, with_each=[{"readinessProbe": probe}]))
        await node.until(lambda: is_ready(node.said.last(UID)))


async def test_a_clock_that_is_put_back_holds_nothing_up(
    node: SmallNode, client: Client, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = PutBack()
    async with node.engine(client, clock=clock) as engine:
        engine.set(pod_of(image, "web", "simulate 7 0"))
        await node.until(lambda: "BackOff" in node.said.reasons(UID))
        clock.put_back()
        now = time.time_ns
        monkeypatch.setattr("time.time_ns", lambda: now() - 5 * 3600 * 10**9)
        restarts = container(node.said.last(UID)).restartCount
        await node.until(lambda: container(node.said.last(UID)).restartCount >= restarts + 2)

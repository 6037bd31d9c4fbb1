"""Pods on a node, over the real CRI server, with simulated containers."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubelet_pods import (
    UID,
    changed,
    container,
    deleted,
    is_ready,
    listed,
    until_true,
)
from tests.support.pushed_images import push
from tests.support.small_node import AdjustableClock, SmallNode, pod_of, pulled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import with_fields
from winpod.kubelet.kubelet import Kubelet

BELOW_A_FILE = f"{__file__}/below"


@pytest.fixture
async def kubelet(node: SmallNode, client: CriClient) -> AsyncIterator[Kubelet]:
    async with node.kubelet(client) as kubelet:
        yield kubelet


async def test_phases_are_logged_with_the_pod(
    node: SmallNode, kubelet: Kubelet, image: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "winpod.kubelet")
    kubelet.update_pod(pod_of(image))
    await node.until(lambda: is_ready(node.reporter.last(UID)))
    fields = [vars(record) for record in caplog.records if hasattr(record, "phase")]
    assert [(line["pod"], line["phase"]) for line in fields] == [
        ("shop/web", "Pending"),
        ("shop/web", "Running"),
    ]


async def test_pod_runs_and_deletion_leaves_nothing(
    node: SmallNode, client: CriClient, kubelet: Kubelet, image: str
) -> None:
    pod = pod_of(image)
    kubelet.update_pod(pod)
    await node.until(lambda: is_ready(node.reporter.last(UID)))
    assert node.reporter.phases(UID) == ["Pending", "Running"]
    assert node.reporter.reasons(UID) == ["Pulled", "Created", "Started"]
    status = node.reporter.last(UID)
    assert status.podIP
    assert container(status).containerID.startswith("winpod://")
    assert "@sha256:" in container(status).imageID
    found = kubelet.find_container("shop", "web", "app")
    assert found is not None
    assert Path(found.log_path).parent == node.node_config.log_root / "shop_web_uid-web/app"
    kubelet.update_pod(deleted(pod))
    await node.until(lambda: node.reporter.deleted == [UID])
    assert container(node.reporter.last(UID)).state.terminated.exitCode == 0
    assert node.reporter.last(UID).phase == "Succeeded"
    assert await listed(client) == (0, 0)
    assert not list((node.node_config.root / "pods").iterdir())
    assert not list(node.node_config.log_root.iterdir())
    assert kubelet.pods() == []


async def test_finished_pod_keeps_its_logs(
    node: SmallNode, client: CriClient, kubelet: Kubelet, image: str
) -> None:
    kubelet.update_pod(pod_of(image, "good", "simulate 0 0.1", restartPolicy="Never"))
    kubelet.update_pod(pod_of(image, "bad", "simulate 3 0.1", "serve", restartPolicy="Never"))
    await node.until(lambda: node.reporter.last("uid-good").phase == "Succeeded")
    await node.until(lambda: container(node.reporter.last("uid-bad")).state.terminated)
    assert node.reporter.last("uid-bad").phase == "Running"
    assert container(node.reporter.last("uid-good")).state.terminated.reason == "Completed"
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    states = {item.metadata.name: item.state for item in sandboxes.items}
    assert states["bad"] == api.SANDBOX_READY
    await until_true(lambda: not_ready(client, "good"))
    found = kubelet.find_container("shop", "good", "app")
    assert found is not None
    assert await asyncio.to_thread(Path(found.log_path).exists)


async def not_ready(client: CriClient, name: str) -> bool:
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    return all(
        item.state == api.SANDBOX_NOTREADY for item in sandboxes.items if item.metadata.name == name
    )


async def test_failing_container_is_restarted_with_backoff(
    node: SmallNode, client: CriClient, kubelet: Kubelet, image: str
) -> None:
    kubelet.update_pod(pod_of(image, "web", "simulate 7 0"))
    await node.until(lambda: container(node.reporter.last(UID)).restartCount == 3)
    told = [container(status) for status in node.reporter.statuses[UID] if status.containerStatuses]
    waiting = [one for one in told if one.state.waiting and one.state.waiting.message]
    assert {one.state.waiting.reason for one in waiting} == {"CrashLoopBackOff"}
    assert waiting[-1].lastState.terminated.exitCode == 7
    assert "restarting failed container=app pod=web_shop(uid-web)" in (
        waiting[-1].state.waiting.message
    )
    assert node.reporter.last(UID).phase == "Running"
    assert node.reporter.reasons(UID).count("BackOff") >= 2
    assert (await listed(client))[1] <= 3


async def test_init_containers_run_in_order_and_sidecars_keep_running(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    kubelet.update_pod(
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
    await node.until(lambda: node.reporter.last(UID).phase == "Succeeded")
    started = [who for _, reason, _, who in node.reporter.events if reason == "Started"]
    assert started == ["first", "side", "third", "app"]
    assert [one.name for one in node.reporter.last(UID).initContainerStatuses] == [
        "first",
        "side",
        "third",
    ]
    assert container(node.reporter.last(UID), "side").state.terminated
    pending = [s for s in node.reporter.statuses[UID] if s.phase == "Pending"]
    assert container(pending[0]).state.waiting.reason == "PodInitializing"


async def test_failed_init_container_fails_pod(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    failing = {"name": "first", "command": ["simulate", "9", "0"]}
    kubelet.update_pod(pod_of(image, initContainers=[failing], restartPolicy="Never"))
    await node.until(lambda: node.reporter.last(UID).phase == "Failed")
    assert container(node.reporter.last(UID)).state.waiting.reason == "PodInitializing"


async def test_probes_set_readiness_and_restart_unhealthy_containers(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    probe = {"exec": {"command": ["simulate", "0"]}, "periodSeconds": 1}
    dead = {"exec": {"command": ["simulate", "1"]}, "periodSeconds": 1, "failureThreshold": 1}
    kubelet.update_pod(
        pod_of(image, "good", with_each=[{"readinessProbe": probe, "startupProbe": probe}])
    )
    kubelet.update_pod(pod_of(image, "dead", with_each=[{"livenessProbe": dead}]))
    kubelet.update_pod(pod_of(image, "deaf", with_each=[{"readinessProbe": dead}]))
    await node.until(lambda: is_ready(node.reporter.last("uid-good")))
    await node.until(lambda: container(node.reporter.last("uid-dead")).restartCount)
    await node.until(lambda: "Unhealthy" in node.reporter.reasons("uid-deaf"))
    await node.until(lambda: node.reporter.last("uid-deaf").phase == "Running")
    assert (
        "uid-dead",
        "Killing",
        "Container app failed liveness probe, will be restarted",
        "app",
    ) in (node.reporter.events)
    assert not any(is_ready(status) for status in node.reporter.statuses["uid-deaf"])
    unhealthy = [e for e in node.reporter.events if e[:2] == ("uid-deaf", "Unhealthy")]
    assert unhealthy[0][2].startswith("Readiness probe failed: simulated: simulate 1")


async def test_pod_exceeding_capacity_is_rejected(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    large = {"resources": {"requests": {"cpu": "3"}}}
    kubelet.update_pod(pod_of(image, "one", with_each=[large]))
    kubelet.update_pod(pod_of(image, "two", with_each=[large]))
    await node.until(lambda: bool(node.reporter.last("uid-two").phase))
    status = node.reporter.last("uid-two")
    assert (status.phase, status.reason) == ("Failed", "OutOfcpu")
    assert status.message == (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 3000, "
        "capacity: 4000"
    )
    kubelet.update_pod(deleted(pod_of(image, "two", with_each=[large])))
    await node.until(lambda: node.reporter.deleted == ["uid-two"])
    await node.until(lambda: node.reporter.last("uid-one").phase == "Running")


async def test_pod_past_active_deadline_fails(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    kubelet.update_pod(pod_of(image, activeDeadlineSeconds=1))
    await node.until(lambda: node.reporter.last(UID).phase == "Failed")
    await node.until(lambda: container(node.reporter.last(UID)).state.terminated)
    status = node.reporter.last(UID)
    assert status.reason == "DeadlineExceeded"
    assert "DeadlineExceeded" in node.reporter.reasons(UID)


async def test_missing_image_keeps_container_waiting(
    node: SmallNode, client: CriClient, kubelet: Kubelet, registry: str
) -> None:
    kubelet.update_pod(pod_of(f"{registry}/gone:1"))
    await node.until(lambda: "ErrImagePull" in waits(node.reporter.statuses.get(UID, [])))
    await node.until(lambda: "ImagePullBackOff" in waits(node.reporter.statuses[UID]))
    assert node.reporter.last(UID).phase == "Pending"
    kubelet.update_pod(deleted(pod_of(f"{registry}/gone:1")))
    await node.until(lambda: node.reporter.deleted == [UID])
    assert await listed(client) == (0, 0)


def waits(statuses: list[v1.PodStatus]) -> set[str]:
    states = [container(s).state for s in statuses if s.containerStatuses]
    return {state.waiting.reason for state in states if state.waiting}


async def test_container_waits_for_missing_config_map(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    source = {"configMapKeyRef": {"name": "settings", "key": "mode"}}
    kubelet.update_pod(pod_of(image, with_each=[{"env": [{"name": "MODE", "valueFrom": source}]}]))
    await node.until(
        lambda: "CreateContainerConfigError" in waits(node.reporter.statuses.get(UID, []))
    )
    assert (
        container(node.reporter.last(UID)).state.waiting.message == 'configmap "settings" not found'
    )


async def test_pre_stop_hook_counts_against_grace_period(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    slow = {"preStop": {"exec": {"command": ["simulate", "0", "0.5"]}}}
    broken = {"postStart": {"exec": {"command": ["simulate", "1"]}}}
    good = pod_of(image, "good", with_each=[{"lifecycle": slow}])
    kubelet.update_pod(good)
    kubelet.update_pod(
        pod_of(image, "broken", with_each=[{"lifecycle": broken}], restartPolicy="Never")
    )
    await node.until(lambda: is_ready(node.reporter.last("uid-good")))
    await node.until(lambda: node.reporter.last("uid-broken").phase in ("Succeeded", "Failed"))
    assert "FailedPostStartHook" in node.reporter.reasons("uid-broken")
    began = asyncio.get_running_loop().time()
    kubelet.update_pod(deleted(good))
    await node.until(lambda: "uid-good" in node.reporter.deleted)
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_shortened_grace_period_speeds_up_termination(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    hook = {"preStop": {"sleep": {"seconds": 500}}}
    pod = pod_of(image, with_each=[{"lifecycle": hook}], terminationGracePeriodSeconds=600)
    kubelet.update_pod(pod)
    await node.until(lambda: is_ready(node.reporter.last(UID)))
    kubelet.update_pod(deleted(pod, grace=600))
    await node.until(lambda: "Killing" in node.reporter.reasons(UID))
    kubelet.update_pod(deleted(pod, grace=0))
    await node.until(lambda: node.reporter.deleted == [UID])


async def test_lost_sandbox_is_recreated(
    node: SmallNode, client: CriClient, kubelet: Kubelet, image: str
) -> None:
    kubelet.update_pod(pod_of(image))
    await node.until(lambda: is_ready(node.reporter.last(UID)))
    before = container(node.reporter.last(UID)).containerID
    (sandbox,) = (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items
    await client.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))
    await node.until(
        lambda: (
            is_ready(node.reporter.last(UID))
            and container(node.reporter.last(UID)).containerID != before
        )
    )
    assert "SandboxChanged" in node.reporter.reasons(UID)
    assert container(node.reporter.last(UID)).restartCount == 1


async def test_agent_restart_keeps_pods_running(
    node: SmallNode, client: CriClient, image: str
) -> None:
    probe = {"exec": {"command": ["simulate", "0"]}, "periodSeconds": 1}
    pod = pod_of(image, with_each=[{"readinessProbe": probe}])
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod)
        kubelet.update_pod(pod_of(image, "orphan", terminationGracePeriodSeconds=1))
        await node.until(lambda: is_ready(node.reporter.last(UID)))
        await node.until(lambda: is_ready(node.reporter.last("uid-orphan")))
        assert starts_timed(kubelet) == 2
    before = node.reporter.last(UID)
    reporter = len(node.reporter.statuses[UID])
    async with node.kubelet(client) as kubelet:
        await kubelet.replace_pods([with_fields(pod, status=before)])
        await node.until(lambda: "uid-orphan" in node.reporter.deleted)
        await until_true(lambda: has_pods(kubelet, 1))
        assert all(is_ready(status) for status in node.reporter.statuses[UID][reporter:])
        found = kubelet.find_container("shop", "web", "app")
        assert found is not None
        assert f"winpod://{found.id}" == container(before).containerID
        assert starts_timed(kubelet) == 0
    assert await listed(client) == (1, 1)


def starts_timed(kubelet: Kubelet) -> float:
    samples = [sample for family in kubelet.metrics.families() for sample in family.samples]
    name = "kubelet_pod_start_duration_seconds_count"
    return next(sample.value for sample in samples if sample.name == name)


async def has_pods(kubelet: Kubelet, number: int) -> bool:
    return len(kubelet.pods()) == number


async def test_status_is_kept_while_runtime_is_down(
    node: SmallNode, home: Path, registry: str
) -> None:
    image = await push(home, f"{registry}/app:1", "2022")
    async with node.runtime.running() as client:
        await pulled(client, image)
    client = CriClient(f"unix:{node.runtime.root}/cri.sock")
    async with node.kubelet(client) as kubelet:
        async with node.runtime.running():
            kubelet.update_pod(pod_of(image))
            await node.until(lambda: is_ready(node.reporter.last(UID)))
            before = container(node.reporter.last(UID)).containerID
        reporter = len(node.reporter.statuses[UID])
        await asyncio.sleep(1.5)
        assert len(node.reporter.statuses[UID]) == reporter
        async with node.runtime.running() as direct:
            kubelet.update_pod(pod_of(image, "late"))
            await node.until(lambda: is_ready(node.reporter.last("uid-late")))
            id_ = before.removeprefix("winpod://")
            stop = api.StopContainerRequest(container_id=id_, timeout=1)
            await direct.call("StopContainer", stop)
            await node.until(lambda: container(node.reporter.last(UID)).restartCount == 1)
    await client.close()


async def test_ephemeral_container_is_started_once(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    pod = pod_of(image)
    kubelet.update_pod(pod)
    await node.until(lambda: is_ready(node.reporter.last(UID)))
    debugger = {"name": "debug", "image": image, "command": ["simulate", "5", "0.1"]}
    kubelet.update_pod(changed(pod, ephemeralContainers=[debugger]))
    await node.until(
        lambda: bool(
            debugging(node.reporter.last(UID)) and debugging(node.reporter.last(UID)).terminated
        )
    )
    assert debugging(node.reporter.last(UID)).terminated.exitCode == 5
    assert node.reporter.last(UID).phase == "Running"


def debugging(status: v1.PodStatus) -> Any:
    listed = status.ephemeralContainerStatuses or ()
    return next((one.state for one in listed), None)


async def test_in_place_resize_if_node_has_capacity(
    node: SmallNode, client: CriClient, kubelet: Kubelet, image: str
) -> None:
    def sized(cpu: str) -> v1.Pod:
        return pod_of(
            image, with_each=[{"resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}}]
        )

    kubelet.update_pod(sized("1"))
    await node.until(lambda: is_ready(node.reporter.last(UID)))
    before = container(node.reporter.last(UID)).containerID
    kubelet.update_pod(sized("2"))
    await node.until(lambda: "ResizeCompleted" in node.reporter.reasons(UID))
    await node.until(
        lambda: (
            container(node.reporter.last(UID)).allocatedResources == {"cpu": "2"}
            and not any("Resize" in c.type for c in node.reporter.last(UID).conditions)
        )
    )
    assert container(node.reporter.last(UID)).containerID == before
    request = api.ContainerStatusRequest(container_id=before.removeprefix("winpod://"))
    limits = (await client.call("ContainerStatus", request)).status.resources.windows
    assert limits.cpu_maximum == 5000
    kubelet.update_pod(sized("40"))
    await node.until(
        lambda: any(c.reason == "Infeasible" for c in node.reporter.last(UID).conditions)
    )
    assert container(node.reporter.last(UID)).allocatedResources == {"cpu": "2"}


async def test_hundred_pods_run_concurrently(
    node: SmallNode, client: CriClient, kubelet: Kubelet, image: str
) -> None:
    names = [f"p{n}" for n in range(100)]
    for name in names:
        kubelet.update_pod(pod_of(image, name))
    await node.until(lambda: all(is_ready(node.reporter.last(f"uid-{name}")) for name in names))
    assert await listed(client) == (100, 100)


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"runtimeClassName": "runhcs-wcow-hypervisor-17763"},
            "FailedCreatePodSandBox",
            "Failed to create pod sandbox: .*requires hypervisor isolation",
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
            "no Windows host to run on",
        ),
        (
            {"volumes": [{"name": "share", "csi": {"driver": "smb.csi.k8s.io"}}]},
            "FailedMount",
            "has a type that this node does not support: csi",
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
async def test_pod_that_cannot_start_waits_with_reason(
    node: SmallNode, client: CriClient, kubelet: Kubelet, spec: Any, reason: str, words: str
) -> None:
    pod = pod_of("app:1", **spec)
    kubelet.update_pod(pod)
    await node.until(lambda: reason in node.reporter.reasons(UID))
    told = next(message for _, told, message, _ in node.reporter.events if told == reason)
    assert re.search(words, told), told
    assert node.reporter.last(UID).phase == "Pending"
    kubelet.update_pod(deleted(pod))
    await node.until(lambda: node.reporter.deleted == [UID])
    assert await listed(client) == (0, 0)


async def test_other_probes_wait_for_startup_probe(
    node: SmallNode, kubelet: Kubelet, image: str
) -> None:
    slow = {"exec": {"command": ["simulate", "1"]}, "periodSeconds": 1, "failureThreshold": 2}
    dead = {"exec": {"command": ["simulate", "2"]}, "failureThreshold": 1}
    both = {"startupProbe": {**slow, "terminationGracePeriodSeconds": 1}, "livenessProbe": dead}
    kubelet.update_pod(pod_of(image, with_each=[both]))
    killed = "Container app failed startup probe, will be restarted"
    await node.until(lambda: (UID, "Killing", killed, "app") in node.reporter.events)
    reporter = [message for _, reason, message, _ in node.reporter.events if reason == "Unhealthy"]
    assert [message.partition(":")[0] for message in reporter] == ["Startup probe failed"] * 2
    assert not any(container(status).started for status in node.reporter.statuses[UID])


async def test_simulated_node_passes_network_probes(
    node: SmallNode, client: CriClient, image: str
) -> None:
    node.node_config = replace(node.node_config, is_simulated=True)
    probe = {"httpGet": {"port": 80}}
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod_of(image, with_each=[{"readinessProbe": probe}]))
        await node.until(lambda: is_ready(node.reporter.last(UID)))


async def test_clock_set_back_delays_nothing(
    node: SmallNode, client: CriClient, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AdjustableClock()
    async with node.kubelet(client, clock=clock) as kubelet:
        kubelet.update_pod(pod_of(image, "web", "simulate 7 0"))
        await node.until(lambda: "BackOff" in node.reporter.reasons(UID))
        clock.set_back()
        now = time.time_ns
        monkeypatch.setattr("time.time_ns", lambda: now() - 5 * 3600 * 10**9)
        restarts = container(node.reporter.last(UID)).restartCount
        await node.until(lambda: container(node.reporter.last(UID)).restartCount >= restarts + 2)

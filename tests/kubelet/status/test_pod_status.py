from datetime import timedelta
from typing import Any

import pytest

from tests.support.known_objects import read
from tests.support.runtime_pods import NOW, container, pod_of, runtime_pod, sandbox
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import qos_class, with_fields
from winpod.kubelet.prober.results import ContainerHealth, ProbeResult
from winpod.kubelet.runtime_status import RuntimePod, to_runtime_pod
from winpod.kubelet.status.phase import PodCondition, PodState, StatusReason
from winpod.kubelet.status.pod_status import generate_status

CRASHED = StatusReason("CrashLoopBackOff", "back-off 10s restarting failed container=app pod=web")


def status_of(
    pod: v1.Pod, current: RuntimePod, before: v1.PodStatus | None = None, **state: Any
) -> Any:
    by_id = {one.id: state["health"][one.name] for one in current.containers() if "health" in state}
    state["health"] = by_id
    return generate_status(pod, current, PodState(NOW, **state), before, "10.0.0.9", NOW)


def conditions_of(status: v1.PodStatus) -> dict[str, tuple[str, str | None, str | None]]:
    return {c.type: (c.status, c.reason, c.message) for c in status.conditions or ()}


def test_transition_time_changes_only_with_status() -> None:
    pod, current = pod_of(), runtime_pod(container("app"))
    first = status_of(pod, current)
    later = generate_status(
        pod, current, PodState(NOW), first, "10.0.0.9", NOW + timedelta(minutes=1)
    )
    assert later == first
    unready = {"app": ContainerHealth(readiness=ProbeResult.FAILURE)}
    third = generate_status(
        pod,
        current,
        PodState(NOW, health={one.id: unready["app"] for one in current.containers()}),
        first,
        "10.0.0.9",
        NOW + timedelta(minutes=2),
    )
    times = {c.type: c.lastTransitionTime for c in third.conditions or ()}
    assert times["Ready"] == NOW + timedelta(minutes=2)
    assert times["Initialized"] == NOW


PHASES: list[tuple[dict[str, Any], list[Any], bool, str]] = [
    ({}, [container("app")], False, "Running"),
    ({}, [container("app", "created")], False, "Pending"),
    ({}, [container("app", "exited")], False, "Running"),
    ({"restartPolicy": "Never"}, [container("app", "exited")], False, "Succeeded"),
    ({"restartPolicy": "Never"}, [container("app", "exited", exit_code=1)], False, "Failed"),
    ({"restartPolicy": "OnFailure"}, [container("app", "exited", exit_code=1)], False, "Running"),
    ({"restartPolicy": "OnFailure"}, [container("app", "exited")], False, "Succeeded"),
    ({}, [container("app", "exited")], True, "Succeeded"),
    ({}, [container("app", "exited", exit_code=3)], True, "Failed"),
    ({"initContainers": [{"name": "first"}]}, [container("first")], False, "Pending"),
    (
        {"initContainers": [{"name": "first"}]},
        [container("first", "exited", exit_code=1)],
        False,
        "Pending",
    ),
    (
        {"initContainers": [{"name": "first"}], "restartPolicy": "Never"},
        [container("first", "exited", exit_code=1)],
        False,
        "Failed",
    ),
    ({"initContainers": [{"name": "first"}]}, [container("app")], False, "Running"),
    (
        {"initContainers": [{"name": "side", "restartPolicy": "Always"}]},
        [container("side", age=20)],
        False,
        "Pending",
    ),
    (
        {
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "restartPolicy": "Never",
        },
        [container("side", age=20), container("app", "exited")],
        False,
        "Running",
    ),
    (
        {
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "restartPolicy": "Never",
        },
        [container("side", "exited", 20, exit_code=9), container("app", "exited")],
        True,
        "Succeeded",
    ),
]


@pytest.mark.parametrize(("spec", "containers", "is_finished", "phase"), PHASES)
def test_phase_follows_from_containers(
    spec: dict[str, Any], containers: list[Any], is_finished: bool, phase: str
) -> None:
    assert (
        status_of(pod_of(**spec), runtime_pod(*containers), is_finished=is_finished).phase == phase
    )


def test_waiting_container_has_reason_and_last_state() -> None:
    current = runtime_pod(container("app", "exited", exit_code=7, reason="Error", restart_count=2))
    status = status_of(pod_of(), current, waiting={"app": CRASHED})
    (app,) = status.containerStatuses
    assert (app.state.waiting.reason, app.state.waiting.message) == (
        CRASHED.reason,
        CRASHED.message,
    )
    assert (app.lastState.terminated.exitCode, app.restartCount) == (7, 2)
    assert status.phase == "Running"
    after = status_of(
        pod_of(),
        runtime_pod(*current.containers(), container("app", age=1, restart_count=3)),
        status,
    )
    assert after.containerStatuses[0].lastState.terminated.exitCode == 7


def test_last_state_is_kept_when_runtime_lost_it() -> None:
    pod = pod_of()
    crashed = status_of(pod, runtime_pod(container("app", "exited", exit_code=7)))
    again = status_of(pod, runtime_pod(container("app", age=1, restart_count=1)), crashed)
    assert again.containerStatuses[0].lastState.terminated.exitCode == 7
    later = status_of(pod, runtime_pod(container("app", age=1, restart_count=1)), again)
    assert later == again


def test_container_lost_while_running_is_terminated() -> None:
    pod = pod_of()
    running = status_of(pod, runtime_pod(container("app")))
    lost = status_of(pod, RuntimePod(), running)
    (app,) = lost.containerStatuses
    assert app.lastState.terminated.reason == "ContainerStatusUnknown"
    assert (app.restartCount, lost.phase) == (1, "Running")


def test_restart_count_never_decreases() -> None:
    pod = pod_of()
    crashed = status_of(pod, runtime_pod(container("app", "exited", restart_count=4)))
    again = status_of(pod, runtime_pod(container("app", age=1, restart_count=0)), crashed)
    assert again.containerStatuses[0].restartCount == 5
    assert status_of(pod, runtime_pod(container("app", age=1)), again) == again


def test_container_in_unknown_state_is_terminated() -> None:
    pod = pod_of()
    running = status_of(pod, runtime_pod(container("app")))
    lost = status_of(pod, runtime_pod(container("app", "unknown")), running)
    (app,) = lost.containerStatuses
    assert app.state.terminated.reason == "ContainerStatusUnknown"
    assert app.restartCount == 1
    assert status_of(pod, runtime_pod(container("app", "unknown")), lost) == lost


def test_resources_stay_during_resize() -> None:
    def sized(cpu: str) -> v1.Pod:
        return pod_of({"name": "app", "resources": {"requests": {"cpu": cpu}}})

    current = runtime_pod(container("app"))
    small = status_of(sized("1"), current)
    resizing = (PodCondition("PodResizeInProgress", True),)
    between = status_of(sized("2"), current, small, conditions=resizing)
    (app,) = between.containerStatuses
    assert (app.allocatedResources, app.resources.requests) == ({"cpu": "2"}, {"cpu": "1"})
    assert (between.allocatedResources, between.resources.requests) == ({"cpu": "2"}, {"cpu": "1"})
    done = status_of(sized("2"), current, between)
    assert done.containerStatuses[0].resources.requests == {"cpu": "2"}
    assert done.resources.requests == {"cpu": "2"}


def test_restarted_pod_is_pending_and_stays_initialized() -> None:
    beside = {"name": "side", "restartPolicy": "Always", "startupProbe": {}}
    pod = pod_of(initContainers=[beside])
    running = status_of(pod, runtime_pod(container("side"), container("app")))
    assert (running.phase, conditions_of(running)["Initialized"][0]) == ("Running", "True")
    old = sandbox(container("side", "exited"), container("app", "exited"), is_ready=False)
    new = sandbox(container("side", age=1, restart_count=1), attempt=1)
    unstarted = {name: ContainerHealth(startup=ProbeResult.UNKNOWN) for name in ("side", "app")}
    again = status_of(pod, to_runtime_pod([old, new]), running, health=unstarted)
    assert (again.phase, conditions_of(again)["Initialized"][0]) == ("Pending", "True")


def test_lost_init_containers_are_assumed_completed() -> None:
    status = status_of(pod_of(initContainers=[{"name": "first"}]), runtime_pod(container("app")))
    (first,) = status.initContainerStatuses
    assert (first.state.terminated.reason, first.ready) == ("Completed", True)


def test_regular_containers_wait_for_init_containers() -> None:
    status = status_of(pod_of(initContainers=[{"name": "first"}]), runtime_pod(container("first")))
    assert status.containerStatuses[0].state.waiting.reason == "PodInitializing"
    assert conditions_of(status)["Initialized"] == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [first]",
    )


def test_readiness_gates_determine_ready_condition() -> None:
    pod = pod_of(readinessGates=[{"conditionType": "example.com/balanced"}])
    current = runtime_pod(container("app"))
    assert conditions_of(status_of(pod, current))["Ready"] == (
        "False",
        "ReadinessGatesNotReady",
        'corresponding condition of pod readiness gate "example.com/balanced" does not exist.',
    )
    gate = {"type": "example.com/balanced", "status": "True"}
    opened = with_fields(pod, status=read(v1.PodStatus, {"conditions": [gate]}))
    status = status_of(opened, current)
    assert conditions_of(status)["Ready"][0] == "True"
    assert "example.com/balanced" in conditions_of(status)


def test_failure_is_reported_after_all_containers_stopped() -> None:
    why = StatusReason("Evicted", "The node was low on resource: memory. ")
    condition = PodCondition("DisruptionTarget", True, "TerminationByKubelet", "")
    state: dict[str, Any] = {"failure": why, "conditions": (condition,)}
    pod = pod_of()
    before = status_of(pod, runtime_pod(container("app")))
    ending = status_of(pod, runtime_pod(container("app")), before, **state)
    assert ending.phase == "Running"
    assert "DisruptionTarget" not in conditions_of(ending)
    ended = status_of(pod, runtime_pod(container("app", "exited")), before, **state)
    assert (ended.phase, ended.reason, ended.message) == ("Failed", why.reason, why.message)
    assert conditions_of(ended)["DisruptionTarget"][0] == "True"
    assert conditions_of(ended)["Ready"][:2] == ("False", "PodFailed")
    kept = status_of(pod, RuntimePod(), ended)
    assert (kept.phase, kept.reason) == ("Failed", "Evicted")


def test_termination_messages_share_size_limit() -> None:
    names = [f"c{n}" for n in range(4)]
    pod = pod_of(*({"name": name} for name in names), restartPolicy="Never")
    current = runtime_pod(*(container(name, "exited", message="x" * 9000) for name in names))
    lengths = [
        len(one.state.terminated.message) for one in status_of(pod, current).containerStatuses
    ]
    assert lengths == [3072] * 4


def test_pod_ip_is_reported_only_while_sandbox_is_ready() -> None:
    current = to_runtime_pod([sandbox(container("app", "exited"), is_ready=False)])
    assert status_of(pod_of(), current).podIP is None


@pytest.mark.parametrize(
    ("resources", "name"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        (
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}},
            "Guaranteed",
        ),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
def test_qos_class_follows_from_resources(resources: Any, name: str) -> None:
    assert qos_class(pod_of({"name": "app", "resources": resources})) == name

from datetime import timedelta
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import read
from tests.node.seen_pods import NOW, container, pod_of, sandbox, seen
from winpod.node.health import Health, Result
from winpod.node.known import Known, Why
from winpod.node.phase import Told
from winpod.node.pods import qos_class, with_fields
from winpod.node.seen import PodSeen, pod_seen
from winpod.node.status import make_status

CRASHED = Why("CrashLoopBackOff", "back-off 10s restarting failed container=app pod=web")


def status_of(pod: v1.Pod, has: PodSeen, before: v1.PodStatus | None = None, **known: Any) -> Any:
    by_id = {one.id: known["health"][one.name] for one in has.containers() if "health" in known}
    known["health"] = by_id
    return make_status(pod, has, Known(NOW, **known), before, "10.0.0.9", NOW)


def told(status: v1.PodStatus) -> dict[str, tuple[str, str | None, str | None]]:
    return {c.type: (c.status, c.reason, c.message) for c in status.conditions or ()}


def test_a_time_changes_only_with_its_condition() -> None:
    pod, has = pod_of(), seen(container("app"))
    first = status_of(pod, has)
    later = make_status(pod, has, Known(NOW), first, "10.0.0.9", NOW + timedelta(minutes=1))
    assert later == first
    unready = {"app": Health(readiness=Result.FAILURE)}
    third = make_status(
        pod,
        has,
        Known(NOW, health={one.id: unready["app"] for one in has.containers()}),
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


@pytest.mark.parametrize(("spec", "containers", "is_over", "phase"), PHASES)
def test_the_phase_follows_from_the_containers(
    spec: dict[str, Any], containers: list[Any], is_over: bool, phase: str
) -> None:
    assert status_of(pod_of(**spec), seen(*containers), is_over=is_over).phase == phase


def test_a_container_that_waits_to_be_started_again_says_why_and_how_it_ended() -> None:
    has = seen(container("app", "exited", exit_code=7, reason="Error", restart_count=2))
    status = status_of(pod_of(), has, waiting={"app": CRASHED})
    (app,) = status.containerStatuses
    assert (app.state.waiting.reason, app.state.waiting.message) == (
        CRASHED.reason,
        CRASHED.message,
    )
    assert (app.lastState.terminated.exitCode, app.restartCount) == (7, 2)
    assert status.phase == "Running"
    after = status_of(
        pod_of(), seen(*has.containers(), container("app", age=1, restart_count=3)), status
    )
    assert after.containerStatuses[0].lastState.terminated.exitCode == 7


def test_the_state_before_is_kept_when_the_runtime_has_forgotten_it() -> None:
    pod = pod_of()
    crashed = status_of(pod, seen(container("app", "exited", exit_code=7)))
    again = status_of(pod, seen(container("app", age=1, restart_count=1)), crashed)
    assert again.containerStatuses[0].lastState.terminated.exitCode == 7
    later = status_of(pod, seen(container("app", age=1, restart_count=1)), again)
    assert later == again


def test_a_container_that_vanished_while_it_ran_has_ended() -> None:
    pod = pod_of()
    running = status_of(pod, seen(container("app")))
    lost = status_of(pod, PodSeen(), running)
    (app,) = lost.containerStatuses
    assert app.lastState.terminated.reason == "ContainerStatusUnknown"
    assert (app.restartCount, lost.phase) == (1, "Running")


def test_a_restart_count_does_not_fall_when_the_runtime_forgot_what_ran() -> None:
    pod = pod_of()
    crashed = status_of(pod, seen(container("app", "exited", restart_count=4)))
    again = status_of(pod, seen(container("app", age=1, restart_count=0)), crashed)
    assert again.containerStatuses[0].restartCount == 5
    assert status_of(pod, seen(container("app", age=1)), again) == again


def test_a_container_of_which_the_runtime_knows_nothing_any_longer_has_ended() -> None:
    pod = pod_of()
    running = status_of(pod, seen(container("app")))
    lost = status_of(pod, seen(container("app", "unknown")), running)
    (app,) = lost.containerStatuses
    assert app.state.terminated.reason == "ContainerStatusUnknown"
    assert app.restartCount == 1
    assert status_of(pod, seen(container("app", "unknown")), lost) == lost


def test_while_a_pod_is_resized_it_has_what_it_had() -> None:
    def sized(cpu: str) -> v1.Pod:
        return pod_of({"name": "app", "resources": {"requests": {"cpu": cpu}}})

    has = seen(container("app"))
    small = status_of(sized("1"), has)
    resizing = (Told("PodResizeInProgress", True),)
    between = status_of(sized("2"), has, small, conditions=resizing)
    (app,) = between.containerStatuses
    assert (app.allocatedResources, app.resources.requests) == ({"cpu": "2"}, {"cpu": "1"})
    assert (between.allocatedResources, between.resources.requests) == ({"cpu": "2"}, {"cpu": "1"})
    done = status_of(sized("2"), has, between)
    assert done.containerStatuses[0].resources.requests == {"cpu": "2"}
    assert done.resources.requests == {"cpu": "2"}


def test_a_pod_that_begins_anew_is_pending_and_stays_initialized() -> None:
    beside = {"name": "side", "restartPolicy": "Always", "startupProbe": {}}
    pod = pod_of(initContainers=[beside])
    running = status_of(pod, seen(container("side"), container("app")))
    assert (running.phase, told(running)["Initialized"][0]) == ("Running", "True")
    old = sandbox(container("side", "exited"), container("app", "exited"), is_ready=False)
    new = sandbox(container("side", age=1, restart_count=1), attempt=1)
    unstarted = {name: Health(startup=Result.UNKNOWN) for name in ("side", "app")}
    again = status_of(pod, pod_seen([old, new]), running, health=unstarted)
    assert (again.phase, told(again)["Initialized"][0]) == ("Pending", "True")


def test_init_containers_that_the_runtime_forgot_have_succeeded() -> None:
    status = status_of(pod_of(initContainers=[{"name": "first"}]), seen(container("app")))
    (first,) = status.initContainerStatuses
    assert (first.state.terminated.reason, first.ready) == ("Completed", True)


def test_before_init_containers_are_done_the_others_wait_for_them() -> None:
    status = status_of(pod_of(initContainers=[{"name": "first"}]), seen(container("first")))
    assert status.containerStatuses[0].state.waiting.reason == "PodInitializing"
    assert told(status)["Initialized"] == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [first]",
    )


def test_a_pod_is_ready_when_its_gates_are_open() -> None:
    pod = pod_of(readinessGates=[{"conditionType": "example.com/balanced"}])
    has = seen(container("app"))
    assert told(status_of(pod, has))["Ready"] == (
        "False",
        "ReadinessGatesNotReady",
        'corresponding condition of pod readiness gate "example.com/balanced" does not exist.',
    )
    gate = {"type": "example.com/balanced", "status": "True"}
    opened = with_fields(pod, status=read(v1.PodStatus, {"conditions": [gate]}))
    status = status_of(opened, has)
    assert told(status)["Ready"][0] == "True"
    assert "example.com/balanced" in told(status)


def test_a_failure_is_told_only_when_nothing_runs_any_longer() -> None:
    why = Why("Evicted", "The node was low on resource: memory. ")
    condition = Told("DisruptionTarget", True, "TerminationByKubelet", "")
    known: dict[str, Any] = {"failure": why, "conditions": (condition,)}
    pod = pod_of()
    before = status_of(pod, seen(container("app")))
    ending = status_of(pod, seen(container("app")), before, **known)
    assert ending.phase == "Running"
    assert "DisruptionTarget" not in told(ending)
    ended = status_of(pod, seen(container("app", "exited")), before, **known)
    assert (ended.phase, ended.reason, ended.message) == ("Failed", why.reason, why.message)
    assert told(ended)["DisruptionTarget"][0] == "True"
    assert told(ended)["Ready"][:2] == ("False", "PodFailed")
    kept = status_of(pod, PodSeen(), ended)
    assert (kept.phase, kept.reason) == ("Failed", "Evicted")


def test_messages_of_a_pod_have_a_limit_together() -> None:
    names = [f"c{n}" for n in range(4)]
    pod = pod_of(*({"name": name} for name in names), restartPolicy="Never")
    has = seen(*(container(name, "exited", message="x" * 9000) for name in names))
    lengths = [len(one.state.terminated.message) for one in status_of(pod, has).containerStatuses]
    assert lengths == [3072] * 4


def test_an_address_is_told_only_while_there_is_a_network() -> None:
    has = pod_seen([sandbox(container("app", "exited"), is_ready=False)])
    assert status_of(pod_of(), has).podIP is None


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
def test_the_class_of_a_pod_follows_from_its_resources(resources: Any, name: str) -> None:
    assert qos_class(pod_of({"name": "app", "resources": resources})) == name

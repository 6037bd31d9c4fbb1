"""Every field of a pod's status: what a kubelet on Windows writes there, or that it never does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import read
from tests.node.seen_pods import NOW, container, pod_of, sandbox, seen
from winpod.node.known import Known, Why
from winpod.node.phase import Told
from winpod.node.pods import with_fields
from winpod.node.seen import PodSeen, pod_seen
from winpod.node.status import make_status, rejected

HOST = "10.0.0.9"
TIME = "2026-07-01T12:00:00Z"
NEVER = "1970-01-01T00:00:00Z"
GATE = "example.com/balanced"

NOT_WRITTEN = {
    "PodStatus": {
        "nominatedNodeName": "the scheduler's",
        "resize": "replaced by conditions",
        "resourceClaimStatuses": "the claim controller's",
        "extendedResourceClaimStatus": "the scheduler's",
        "nodeAllocatableResourceClaimStatuses": "the scheduler's",
        "volumeHealth": "of CSI volumes, which this node refuses",
    },
    "ContainerStatus": {
        "allocatedResourcesStatus": "of devices, which this node has none of",
        "stopSignal": "behind a gate that is closed",
        "user": "of Linux",
    },
    "PodCondition": {"lastProbeTime": "never told by anybody"},
    "ContainerStateTerminated": {"signal": "of Linux"},
    "VolumeMountStatus": {"volumeStatus": "behind a gate that is closed"},
}


def stated(kind: str, status: str = "True", since: str = TIME, **why: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": since,
        "observedGeneration": 3,
        **why,
    }


def all_five(ready: str = "True", *, sandbox: str = "True", **why: str) -> list[dict[str, Any]]:
    return [
        stated("PodReadyToStartContainers", sandbox),
        stated("Initialized"),
        stated("Ready", ready, **why),
        stated("ContainersReady", ready, **why),
        stated("PodScheduled"),
    ]


def waiting(name: str, reason: str = "ContainerCreating") -> dict[str, Any]:
    return {
        "name": name,
        "image": "app:1",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason}},
    }


def run(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": "app:1",
        "imageID": "app@sha256:1",
        "containerID": f"winpod://{name}-10",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "resources": {},
        "state": {"running": {"startedAt": "2026-07-01T11:59:50Z"}},
        **more,
    }


def ended(name: str, code: int, **more: Any) -> dict[str, Any]:
    return {
        "terminated": {
            "exitCode": code,
            "startedAt": "2026-07-01T11:59:50Z",
            "finishedAt": "2026-07-01T11:59:51Z",
            "containerID": f"winpod://{name}-10",
            **more,
        }
    }


def basics(phase: str, **more: Any) -> dict[str, Any]:
    return {
        "phase": phase,
        "startTime": TIME,
        "hostIP": HOST,
        "hostIPs": [{"ip": HOST}],
        "qosClass": "BestEffort",
        "observedGeneration": 3,
        "resources": {},
        **more,
    }


ADDRESS = {"podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]}
IMAGE: dict[str, Any] = {"image": "app:1", "image_ref": "app@sha256:1"}
UNREADY = {
    "reason": "ContainersNotReady",
    "message": "containers with unready status: [app]",
}
LOST = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "the pod has ended, and nobody has seen this container end",
}

SIZED = {
    "requests": {"cpu": "500m", "memory": "64Mi"},
    "limits": {"cpu": "1", "memory": "128Mi"},
}
BOTH_SIZED = {
    "requests": {"cpu": "750m", "memory": "96Mi"},
    "limits": {"cpu": "1500m", "memory": "192Mi"},
}
SMALL = {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
FULL = pod_of(
    {
        "name": "web",
        "resources": SIZED,
        "volumeMounts": [
            {"name": "data", "mountPath": "C:\\data"},
            {"name": "config", "mountPath": "C:\\config", "readOnly": True},
        ],
    },
    {"name": "app", "resources": SMALL},
    initContainers=[{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}],
    ephemeralContainers=[{"name": "debug"}],
    readinessGates=[{"conditionType": GATE}],
)
GATED = with_fields(
    FULL, status=read(v1.PodStatus, {"conditions": [{"type": GATE, "status": "True"}]})
)
RUNS = seen(
    container("first", "exited", reason="Completed", message="done", **IMAGE),
    *(container(name, **IMAGE) for name in ("beside", "web", "app", "debug")),
    ips=("fd00::7", "10.1.0.7", "10.1.0.8"),
)

CRASHED = container("app", "exited", exit_code=7, reason="Error", restart_count=2, **IMAGE)
BACK_OFF = Why("CrashLoopBackOff", "back-off 10s restarting failed container")
EVICTED = Why("Evicted", "The node was low on resource: memory. ")
DISRUPTED = Told("DisruptionTarget", True, "TerminationByKubelet", EVICTED.message)

Case = tuple[v1.Pod, PodSeen, Known, dict[str, Any]]
CASES: dict[str, Case] = {
    "a pod that was just taken": (
        pod_of(),
        PodSeen(),
        Known(NOW),
        basics(
            "Pending",
            containerStatuses=[waiting("app")],
            conditions=all_five("False", sandbox="False", **UNREADY),
        ),
    ),
    "one that runs, with everything a pod may have": (
        GATED,
        RUNS,
        Known(NOW, conditions=(Told("PodResizePending", True, "Deferred", "no room"),)),
        basics(
            "Running",
            podIP="10.1.0.7",
            podIPs=[{"ip": "10.1.0.7"}, {"ip": "fd00::7"}],
            qosClass="Burstable",
            allocatedResources=BOTH_SIZED["requests"],
            resources=BOTH_SIZED,
            initContainerStatuses=[
                run(
                    "first",
                    started=False,
                    state=ended("first", 0, reason="Completed", message="done"),
                ),
                run("beside"),
            ],
            containerStatuses=[
                run("app", resources=SMALL, allocatedResources=SMALL["requests"]),
                run(
                    "web",
                    resources=SIZED,
                    allocatedResources=SIZED["requests"],
                    volumeMounts=[
                        {"name": "data", "mountPath": "C:\\data"},
                        {
                            "name": "config",
                            "mountPath": "C:\\config",
                            "readOnly": True,
                            "recursiveReadOnly": "Disabled",
                        },
                    ],
                ),
            ],
            ephemeralContainerStatuses=[
                {key: value for key, value in run("debug", ready=False).items() if key != "started"}
            ],
            conditions=[
                {"type": GATE, "status": "True"},
                stated("PodResizePending", reason="Deferred", message="no room"),
                *all_five(),
            ],
        ),
    ),
    "one that waits to be started again": (
        pod_of(),
        seen(CRASHED),
        Known(NOW, waiting={"app": BACK_OFF}),
        basics(
            "Running",
            **ADDRESS,
            containerStatuses=[
                run(
                    "app",
                    ready=False,
                    started=False,
                    restartCount=2,
                    state={"waiting": {"reason": BACK_OFF.reason, "message": BACK_OFF.message}},
                    lastState=ended("app", 7, reason="Error"),
                )
            ],
            conditions=all_five("False", **UNREADY),
        ),
    ),
    "one whose container could not be started": (
        pod_of(restartPolicy="Never"),
        seen(
            replace(
                container("app", "exited", exit_code=128, reason="StartError", **IMAGE),
                started_at=None,
            )
        ),
        Known(NOW),
        basics(
            "Failed",
            **ADDRESS,
            containerStatuses=[
                run(
                    "app",
                    ready=False,
                    started=False,
                    state=ended("app", 128, reason="StartError", startedAt=NEVER),
                )
            ],
            conditions=all_five("False", reason="PodFailed"),
        ),
    ),
    "one that was evicted": (
        pod_of(),
        pod_seen([sandbox(container("app", "exited", exit_code=9, **IMAGE), is_ready=False)]),
        Known(NOW, failure=EVICTED, is_over=True, conditions=(DISRUPTED,)),
        basics(
            "Failed",
            reason=EVICTED.reason,
            message=EVICTED.message,
            containerStatuses=[
                run("app", ready=False, started=False, state=ended("app", 9)),
            ],
            conditions=[
                stated("DisruptionTarget", reason=DISRUPTED.reason, message=DISRUPTED.message),
                *all_five("False", sandbox="False", reason="PodFailed"),
            ],
        ),
    ),
    "one that was deleted before it began": (
        pod_of(),
        PodSeen(),
        Known(NOW, is_over=True),
        basics(
            "Failed",
            containerStatuses=[waiting("app") | {"state": {"terminated": LOST}}],
            conditions=all_five("False", sandbox="False", reason="PodFailed"),
        ),
    ),
    "one that was deleted in its init containers": (
        pod_of(initContainers=[{"name": "first"}, {"name": "second"}]),
        PodSeen(),
        Known(NOW, is_over=True),
        basics(
            "Failed",
            initContainerStatuses=[
                waiting("first") | {"state": {"terminated": LOST}},
                waiting("second", "PodInitializing"),
            ],
            containerStatuses=[waiting("app", "PodInitializing")],
            conditions=[
                stated("PodReadyToStartContainers", "False"),
                stated(
                    "Initialized",
                    "False",
                    reason="ContainersNotInitialized",
                    message="containers with incomplete status: [first second]",
                ),
                stated("Ready", "False", reason="PodFailed"),
                stated("ContainersReady", "False", reason="PodFailed"),
                stated("PodScheduled"),
            ],
        ),
    ),
}


@pytest.mark.parametrize(("pod", "has", "known", "status"), CASES.values(), ids=CASES.keys())
def test_a_status_has_these_fields_and_no_others(
    pod: v1.Pod, has: PodSeen, known: Known, status: dict[str, Any]
) -> None:
    assert make_status(pod, has, known, None, HOST, NOW).to_dict() == status


def test_a_pod_that_is_not_taken_keeps_only_what_others_said_of_it() -> None:
    told = [{"type": "PodScheduled", "status": "True"}, {"type": GATE, "status": "True"}]
    pod = with_fields(pod_of(), status=read(v1.PodStatus, {"conditions": told}))
    assert rejected(pod, Why("OutOfcpu", "too little"), NOW).to_dict() == {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: too little",
        "startTime": TIME,
        "qosClass": "BestEffort",
        "observedGeneration": 3,
        "conditions": [{"type": GATE, "status": "True"}],
    }


KINDS: dict[str, Any] = {
    "conditions": v1.PodCondition,
    "containerStatuses": v1.ContainerStatus,
    "initContainerStatuses": v1.ContainerStatus,
    "ephemeralContainerStatuses": v1.ContainerStatus,
    "volumeMounts": v1.VolumeMountStatus,
    "running": v1.ContainerStateRunning,
    "waiting": v1.ContainerStateWaiting,
    "terminated": v1.ContainerStateTerminated,
}


def test_every_field_of_the_api_is_in_a_case_or_known_to_be_nobodys_here() -> None:
    cases = [status for *_, status in CASES.values()]
    written: dict[str, set[str]] = {}
    for kind, name in (found for status in cases for found in _fields(v1.PodStatus, status)):
        written.setdefault(kind, set()).add(name)
    for kind in {v1.PodStatus, *KINDS.values()}:
        name = kind.__name__
        assert written[name] | NOT_WRITTEN.get(name, {}).keys() == set(kind.__annotations__), name
        assert not written[name] & NOT_WRITTEN.get(name, {}).keys()


def _fields(kind: Any, has: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in has.items():
        yield kind.__name__, name
        inner = value.items() if name in ("state", "lastState") else [(name, value)]
        for key, found in inner:
            if key in KINDS:
                for one in found if isinstance(found, list) else [found]:
                    yield from _fields(KINDS[key], one)

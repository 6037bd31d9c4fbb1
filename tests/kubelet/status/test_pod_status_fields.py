"""Every field of a pod's status: written as by a kubelet on Windows, or never written."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.known_objects import read
from tests.support.runtime_pods import NOW, container, pod_of, runtime_pod, sandbox
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import with_fields
from winpod.kubelet.runtime_status import RuntimePod, to_runtime_pod
from winpod.kubelet.status.phase import PodCondition, PodState, StatusReason
from winpod.kubelet.status.pod_status import generate_status, rejected_status

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
    },
    "ContainerStatus": {
        "allocatedResourcesStatus": "the node has no devices",
        "stopSignal": "behind a disabled feature gate",
        "user": "Linux only",
    },
    "PodCondition": {"lastProbeTime": "never set by the kubelet"},
    "ContainerStateTerminated": {"signal": "Linux only"},
    "VolumeMountStatus": {"volumeStatus": "behind a disabled feature gate"},
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
    "message": "the pod has terminated, and the exit of this container was not observed",
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
RUNS = runtime_pod(
    container("first", "exited", reason="Completed", message="done", **IMAGE),
    *(container(name, **IMAGE) for name in ("beside", "web", "app", "debug")),
    ips=("fd00::7", "10.1.0.7", "10.1.0.8"),
)

CRASHED = container("app", "exited", exit_code=7, reason="Error", restart_count=2, **IMAGE)
BACK_OFF = StatusReason("CrashLoopBackOff", "back-off 10s restarting failed container")
EVICTED = StatusReason("Evicted", "The node was low on resource: memory. ")
DISRUPTED = PodCondition("DisruptionTarget", True, "TerminationByKubelet", EVICTED.message)

Case = tuple[v1.Pod, RuntimePod, PodState, dict[str, Any]]
CASES: dict[str, Case] = {
    "just admitted": (
        pod_of(),
        RuntimePod(),
        PodState(NOW),
        basics(
            "Pending",
            containerStatuses=[waiting("app")],
            conditions=all_five("False", sandbox="False", **UNREADY),
        ),
    ),
    "running with all fields": (
        GATED,
        RUNS,
        PodState(NOW, conditions=(PodCondition("PodResizePending", True, "Deferred", "no room"),)),
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
    "in crash-loop backoff": (
        pod_of(),
        runtime_pod(CRASHED),
        PodState(NOW, waiting={"app": BACK_OFF}),
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
    "container failed to start": (
        pod_of(restartPolicy="Never"),
        runtime_pod(
            replace(
                container("app", "exited", exit_code=128, reason="StartError", **IMAGE),
                started_at=None,
            )
        ),
        PodState(NOW),
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
    "evicted": (
        pod_of(),
        to_runtime_pod([sandbox(container("app", "exited", exit_code=9, **IMAGE), is_ready=False)]),
        PodState(NOW, failure=EVICTED, is_finished=True, conditions=(DISRUPTED,)),
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
    "deleted before start": (
        pod_of(),
        RuntimePod(),
        PodState(NOW, is_finished=True),
        basics(
            "Failed",
            containerStatuses=[waiting("app") | {"state": {"terminated": LOST}}],
            conditions=all_five("False", sandbox="False", reason="PodFailed"),
        ),
    ),
    "deleted during initialization": (
        pod_of(initContainers=[{"name": "first"}, {"name": "second"}]),
        RuntimePod(),
        PodState(NOW, is_finished=True),
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


@pytest.mark.parametrize(("pod", "current", "state", "status"), CASES.values(), ids=CASES.keys())
def test_status_has_exactly_these_fields(
    pod: v1.Pod, current: RuntimePod, state: PodState, status: dict[str, Any]
) -> None:
    assert generate_status(pod, current, state, None, HOST, NOW).to_dict() == status


def test_rejected_pod_keeps_only_foreign_conditions() -> None:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": GATE, "status": "True"}]
    pod = with_fields(pod_of(), status=read(v1.PodStatus, {"conditions": conditions}))
    assert rejected_status(pod, StatusReason("OutOfcpu", "too little"), NOW).to_dict() == {
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


def test_every_api_field_is_covered_or_excluded() -> None:
    cases = [status for *_, status in CASES.values()]
    written: dict[str, set[str]] = {}
    for kind, name in (field for status in cases for field in _fields(v1.PodStatus, status)):
        written.setdefault(kind, set()).add(name)
    for kind in {v1.PodStatus, *KINDS.values()}:
        name = kind.__name__
        assert written[name] | NOT_WRITTEN.get(name, {}).keys() == set(kind.__annotations__), name
        assert not written[name] & NOT_WRITTEN.get(name, {}).keys()


def _fields(kind: Any, fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        yield kind.__name__, name
        inner = value.items() if name in ("state", "lastState") else [(name, value)]
        for key, nested in inner:
            if key in KINDS:
                for one in nested if isinstance(nested, list) else [nested]:
                    yield from _fields(KINDS[key], one)

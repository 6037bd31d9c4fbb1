"""JSON views of the control plane's state, for the tables of the CLI and `-o json`.

Pod states are worded as kubectl prints them.
"""

from __future__ import annotations

from typing import Any

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    condition,
    init_containers,
    is_deleted,
    is_sidecar,
    metadata_of,
    spec_of,
    uid_of,
)
from winpod.labels import ACCELERATOR_ANNOTATION
from winpod.placement.predicates import TERMINAL_PHASES
from winpod.play.apiserver.objects import Document, ObjectKey, key_of
from winpod.play.apiserver.pods import Binding, images_of
from winpod.play.control_plane import ControlPlane
from winpod.play.controllers.pvc import CLAIM, is_terminating, pods_using
from winpod.play.kubelet_objects import from_document
from winpod.play.pod_template import name_of, owner_of
from winpod.play.proxy.endpoints import ServiceEndpoints, service_pods


def pod_state(pod: v1.Pod) -> str:
    """Return the STATUS column of kubectl: `Running`, `CrashLoopBackOff`, `Init:0/2`..."""
    status = pod.status or v1.PodStatus()
    state = status.reason or status.phase or "Pending"
    init_reason = _init_reason(pod, status)
    if init_reason:
        state = init_reason
    else:
        for container in reversed(status.containerStatuses or ()):
            state = _container_reason(container.state) or state
    if state == "Completed" and any(c.ready for c in status.containerStatuses or ()):
        state = "Running"
    if is_deleted(pod) and status.phase not in TERMINAL_PHASES:
        state = "Terminating"
    return state


def _init_reason(pod: v1.Pod, status: v1.PodStatus) -> str:
    containers = init_containers(pod)
    by_name = {container.name: container for container in containers}
    for index, container in enumerate(status.initContainerStatuses or ()):
        state = container.state or v1.ContainerState()
        spec = by_name.get(container.name)
        if state.terminated and state.terminated.exitCode == 0:
            continue
        if spec is not None and is_sidecar(spec) and container.started:
            continue
        reason = _container_reason(state)
        if not reason or reason == "PodInitializing":
            return f"Init:{index}/{len(containers)}"
        return f"Init:{reason}"
    return ""


def _container_reason(state: v1.ContainerState | None) -> str:
    if state and state.waiting and state.waiting.reason:
        return state.waiting.reason
    if state and state.terminated:
        ended = state.terminated
        return ended.reason or f"ExitCode:{ended.exitCode}"
    return ""


def readiness(pod: v1.Pod) -> str:
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return f"{sum(bool(status.ready) for status in statuses)}/{len(spec_of(pod).containers)}"


def restart_count(pod: v1.Pod) -> int:
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return sum(status.restartCount for status in statuses)


def pod_problem(pod: v1.Pod) -> str:
    """Return the message of what the pod or a container waits for, or of why it failed."""
    status = pod.status or v1.PodStatus()
    for container in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ())):
        state = container.state or v1.ContainerState()
        if state.waiting and state.waiting.message:
            return state.waiting.message
        last = container.lastState or v1.ContainerState()
        for ended in (state.terminated, last.terminated):
            if ended and ended.exitCode and ended.message:
                return ended.message
    scheduled = condition(status, "PodScheduled")
    waiting = scheduled.message if scheduled and scheduled.status == "False" else ""
    return status.message or waiting or ""


def state_view(control_plane: ControlPlane) -> dict[str, Any]:
    return {
        "nodes": [_node(control_plane, name) for name in control_plane.fleet.nodes],
        "pods": [_pod(control_plane, pod) for pod in control_plane.pods.all()],
        "workloads": [
            {"kind": key.kind, "namespace": key.namespace, "name": key.name, **status}
            for key, status in sorted(control_plane.workloads.statuses.items())
            if control_plane.records.get(key)
        ],
        "services": [
            _service(control_plane, service) for service in control_plane.publishing.served
        ],
        "troubles": control_plane.publishing.problems,
        "claims": [
            _claim(control_plane, document) for document in control_plane.records.list_kind(CLAIM)
        ],
        "clearing": control_plane.is_deleting_volumes,
    }


def _node(control_plane: ControlPlane, name: str) -> dict[str, Any]:
    node = control_plane.fleet.nodes[name]
    return {
        "name": name,
        "build": str(node.facts.build),
        "describe": node.facts.build.describe(),
        "root": str(node.facts.root),
        "socket": str(node.socket),
        "handlers": sorted(node.facts.handlers),
        "accelerator": node.accelerator,
        "pods": len(control_plane.pods.on_node(name)),
    }


def _claim(control_plane: ControlPlane, document: Document) -> dict[str, Any]:
    key = key_of(document)
    return {
        "namespace": key.namespace,
        "name": key.name,
        "state": "Terminating" if is_terminating(document) else "Bound",
        "pods": pods_using(key, control_plane.pods.all()),
    }


def _pod(control_plane: ControlPlane, pod: v1.Pod) -> dict[str, Any]:
    metadata, spec, status = metadata_of(pod), spec_of(pod), pod.status or v1.PodStatus()
    choice = control_plane.pods.choices.get(uid_of(pod)) or Binding("")
    owner = owner_of(pod)
    node = control_plane.fleet.node_of(pod)
    return {
        "namespace": metadata.namespace,
        "name": name_of(pod),
        "uid": uid_of(pod),
        "owner": f"{owner.kind}/{owner.name}" if owner else "",
        "node": spec.nodeName or "",
        "build": str(node.facts.build.base) if node else "",
        "handler": choice.handler,
        "accelerator": (metadata.annotations or {}).get(ACCELERATOR_ANNOTATION, ""),
        "runtimeClass": spec.runtimeClassName or "",
        "images": images_of(pod),
        "containers": [container.name for container in spec.containers],
        "ip": status.podIP or "",
        "phase": status.phase or "Pending",
        "state": pod_state(pod),
        "ready": readiness(pod),
        "isReady": _is_ready(status),
        "restarts": restart_count(pod),
        "createdAt": metadata.creationTimestamp.isoformat() if metadata.creationTimestamp else "",
        "why": choice.why,
        "against": list(choice.lines),
        "advice": list(choice.advice),
        "unknown": [] if _is_ready(status) else list(choice.unknown),
        "trouble": pod_problem(pod),
    }


def _is_ready(status: v1.PodStatus) -> bool:
    ready = condition(status, "Ready")
    return ready is not None and ready.status == "True"


def _service(control_plane: ControlPlane, service: ServiceEndpoints) -> dict[str, Any]:
    owner = f"{service.namespace}/{service.name}"
    return {
        "namespace": service.namespace,
        "name": service.name,
        "address": service.address,
        "externalName": service.external_name,
        "ports": [
            {
                "name": port.name,
                "port": port.port,
                "protocol": port.protocol,
                "pods": len(port.targets),
            }
            for port in service.ports
        ],
        "published": [
            f"{port.address}:{port.number}"
            for port in control_plane.publishing.published.get(owner, ())
        ],
    }


def object_view(control_plane: ControlPlane, key: ObjectKey) -> Document | None:
    """Return one object with its status, pods and events."""
    stored = control_plane.records.get(key)
    if stored is None:
        return None
    document = dict(stored.document)
    events = [
        event
        for event in control_plane.events.all()
        if (event["kind"], event["namespace"], event["name"]) == (key.kind, key.namespace, key.name)
    ]
    uid = document["metadata"].get("uid", "")
    view: Document = {
        "object": document,
        "status": control_plane.workloads.statuses.get(key, {}),
        "events": events,
        "pods": [_pod(control_plane, pod) for pod in control_plane.pods.of_owner(uid)],
    }
    if key.kind == "Pod" and (pod := control_plane.pods.get(uid)):
        view["pod"] = _pod(control_plane, pod)
    if key.kind == "Service":
        behind = service_pods(from_document(v1.Service, document), control_plane.pods.all())
        view["behind"] = [{"pod": name, "ports": list(ports.items())} for name, ports in behind]
        view["service"] = next(
            (
                _service(control_plane, service)
                for service in control_plane.publishing.served
                if (service.namespace, service.name) == (key.namespace, key.name)
            ),
            {},
        )
    return view


def names_view(control_plane: ControlPlane) -> list[ObjectKey]:
    """List the keys of all objects, for completion and lookup by name."""
    documents = (
        stored.document
        for key in control_plane.records.keys()  # noqa: SIM118
        if (stored := control_plane.records.get(key))
    )
    return [key_of(document) for document in documents]

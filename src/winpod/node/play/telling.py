"""What is played, as JSON: for the tables of commands, and for whoever reads `-o json`."""

from __future__ import annotations

from typing import Any

from lightkube.models import core_v1 as v1

from winpod.cri.labels import ACCELERATOR_ANNOTATION
from winpod.node.play.claims import CLAIM, holders, is_ending
from winpod.node.play.objects import Document, Key, key_of
from winpod.node.play.placing import Choice
from winpod.node.play.pods import images_of
from winpod.node.play.services import Served, pods_behind
from winpod.node.play.source import typed
from winpod.node.play.summary import readiness, restart_count, state_of, trouble_of
from winpod.node.play.templates import name_of, owner_of
from winpod.node.play.world import World
from winpod.node.pods import condition, uid_of
from winpod.node.requests import metadata_of, spec_of


def state(world: World) -> dict[str, Any]:
    return {
        "nodes": [_node(world, name) for name in world.fleet.nodes],
        "pods": [_pod(world, pod) for pod in world.pods.all()],
        "workloads": [
            {"kind": key.kind, "namespace": key.namespace, "name": key.name, **status}
            for key, status in sorted(world.workloads.statuses.items())
            if world.records.get(key)
        ],
        "services": [_service(world, service) for service in world.publishing.served],
        "troubles": world.publishing.troubles,
        "claims": [_claim(world, document) for document in world.records.of_kind(CLAIM)],
        "clearing": world.is_clearing,
    }


def _node(world: World, name: str) -> dict[str, Any]:
    node = world.fleet.nodes[name]
    return {
        "name": name,
        "build": str(node.facts.build),
        "describe": node.facts.build.describe(),
        "root": str(node.facts.root),
        "socket": str(node.socket),
        "handlers": sorted(node.facts.handlers),
        "accelerator": node.accelerator,
        "pods": len(world.pods.on(name)),
    }


def _claim(world: World, document: Document) -> dict[str, Any]:
    key = key_of(document)
    return {
        "namespace": key.namespace,
        "name": key.name,
        "state": "Terminating" if is_ending(document) else "Bound",
        "pods": holders(key, world.pods.all()),
    }


def _pod(world: World, pod: v1.Pod) -> dict[str, Any]:
    metadata, spec, status = metadata_of(pod), spec_of(pod), pod.status or v1.PodStatus()
    choice = world.pods.choices.get(uid_of(pod)) or Choice("")
    owner = owner_of(pod)
    node = world.fleet.node_of(pod)
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
        "state": state_of(pod),
        "ready": readiness(pod),
        "isReady": _is_ready(status),
        "restarts": restart_count(pod),
        "createdAt": metadata.creationTimestamp.isoformat() if metadata.creationTimestamp else "",
        "why": choice.why,
        "against": list(choice.lines),
        "advice": list(choice.advice),
        "unknown": [] if _is_ready(status) else list(choice.unknown),
        "trouble": trouble_of(pod),
    }


def _is_ready(status: v1.PodStatus) -> bool:
    ready = condition(status, "Ready")
    return ready is not None and ready.status == "True"


def _service(world: World, service: Served) -> dict[str, Any]:
    owner = f"{service.namespace}/{service.name}"
    return {
        "namespace": service.namespace,
        "name": service.name,
        "address": service.address,
        "externalName": service.external_name,
        "ports": [
            {"name": way.name, "port": way.port, "protocol": way.protocol, "pods": len(way.targets)}
            for way in service.ways
        ],
        "published": [
            f"{port.address}:{port.number}" for port in world.publishing.published.get(owner, ())
        ],
    }


def whole(world: World, key: Key) -> Document | None:
    """One object with all that is known of it: its status, its pods, its events."""
    kept = world.records.get(key)
    if kept is None:
        return None
    document = dict(kept.document)
    about = [
        event
        for event in world.events.all()
        if (event["kind"], event["namespace"], event["name"]) == (key.kind, key.namespace, key.name)
    ]
    uid = document["metadata"].get("uid", "")
    told: Document = {
        "object": document,
        "status": world.workloads.statuses.get(key, {}),
        "events": about,
        "pods": [_pod(world, pod) for pod in world.pods.of_owner(uid)],
    }
    if key.kind == "Pod" and (pod := world.pods.get(uid)):
        told["pod"] = _pod(world, pod)
    if key.kind == "Service":
        found = pods_behind(typed(v1.Service, document), world.pods.all())
        told["behind"] = [{"pod": name, "ports": list(ports.items())} for name, ports in found]
        told["service"] = next(
            (
                _service(world, one)
                for one in world.publishing.served
                if (one.namespace, one.name) == (key.namespace, key.name)
            ),
            {},
        )
    return told


def names(world: World) -> list[Key]:
    """Of all objects, for completion and for finding one."""
    documents = (kept.document for key in world.records.keys() if (kept := world.records.get(key)))  # noqa: SIM118
    return [key_of(document) for document in documents]

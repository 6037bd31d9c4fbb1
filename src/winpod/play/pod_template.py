"""Pods from templates: the functions that workload controllers share.

All functions are pure. Name suffixes, which Kubernetes draws at random, are derived from a hash, so
that the same input has the same result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import LabelSelector, ObjectMeta, OwnerReference
from winpod.k8s.pods import condition, is_deleted, metadata_of
from winpod.labels import OWNER_ANNOTATION
from winpod.placement.model import NodeSelectorRequirement
from winpod.placement.predicates import TERMINAL_PHASES

HASH_LABEL = "pod-template-hash"
REVISION_LABEL = "controller-revision-hash"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_MAX_PREFIX = 200


@dataclass(frozen=True, slots=True)
class ControllerActions:
    """Actions of one reconcile; `claims` and `jobs` are created before the pods that need them.

    `requeue_at` is the time of the next reconcile if no object changes before.
    """

    create: tuple[v1.Pod, ...] = ()
    delete: tuple[v1.Pod, ...] = ()
    claims: tuple[v1.PersistentVolumeClaim, ...] = ()
    jobs: tuple[Any, ...] = ()
    remove_jobs: tuple[str, ...] = ()
    status: Mapping[str, Any] | None = None
    requeue_at: datetime | None = None


def earliest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def hash_suffix(*parts: object, count: int) -> str:
    """Return a suffix from the alphabet of Kubernetes name suffixes, derived from the parts."""
    digest = hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:count])


def template_hash(template: v1.PodTemplateSpec) -> str:
    text = json.dumps(template.to_dict(), sort_keys=True, default=str)
    return hash_suffix(text, count=10)


def unique_name(prefix: str, taken: Iterable[str], *parts: object) -> str:
    """Return `prefix-xxxxx`, a name that is not taken."""
    used = set(taken)
    number = 0
    while True:
        name = f"{prefix[:_MAX_PREFIX]}-{hash_suffix(prefix, *parts, number, count=5)}"
        if name not in used:
            return name
        number += 1


def pod_from_template(
    owner: Any,
    template: v1.PodTemplateSpec,
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> v1.Pod:
    metadata = template.metadata or ObjectMeta()
    spec = v1.PodSpec.from_dict(template.spec.to_dict() if template.spec else {})
    pod_metadata = ObjectMeta(
        name=name,
        namespace=owner.metadata.namespace,
        labels={**(metadata.labels or {}), **(labels or {})},
        annotations={
            **(metadata.annotations or {}),
            **(annotations or {}),
            OWNER_ANNOTATION: f"{owner.kind}/{owner.metadata.name}",
        },
        ownerReferences=[reference_to(owner)],
    )
    return v1.Pod(metadata=pod_metadata, spec=spec)


def reference_to(owner: Any) -> OwnerReference:
    return OwnerReference(
        apiVersion=owner.apiVersion,
        kind=owner.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        blockOwnerDeletion=True,
    )


def owner_of(pod: v1.Pod) -> OwnerReference | None:
    for reference in metadata_of(pod).ownerReferences or ():
        if reference.controller:
            return reference
    return None


def name_of(pod: v1.Pod) -> str:
    return metadata_of(pod).name or ""


def label(pod: v1.Pod, key: str) -> str:
    return str((metadata_of(pod).labels or {}).get(key, ""))


def phase(pod: v1.Pod) -> str:
    return (pod.status.phase if pod.status else None) or "Pending"


def is_terminal(pod: v1.Pod) -> bool:
    return phase(pod) in TERMINAL_PHASES


def is_active(pod: v1.Pod) -> bool:
    return not is_deleted(pod) and not is_terminal(pod)


def is_ready(pod: v1.Pod) -> bool:
    ready = condition(pod.status, "Ready")
    return not is_deleted(pod) and ready is not None and ready.status == "True"


def ready_since(pod: v1.Pod) -> datetime | None:
    ready = condition(pod.status, "Ready")
    return ready.lastTransitionTime if ready and is_ready(pod) else None


def is_available(pod: v1.Pod, seconds: int, now: datetime) -> bool:
    """Whether the pod has been ready for at least this many seconds."""
    since = ready_since(pod)
    return is_ready(pod) and (
        not seconds or (since is not None and now >= since + timedelta(seconds=seconds))
    )


def resolve_int_or_percent(amount: int | str | None, default: str, total: int, *, up: bool) -> int:
    """Resolve a number of pods or a percentage of `total`."""
    value = default if amount is None else amount
    if isinstance(value, int):
        return value
    percent = int(str(value).removesuffix("%")) if str(value).endswith("%") else None
    if percent is None:
        return int(value)
    return -(-total * percent // 100) if up else total * percent // 100


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches these labels; an empty selector matches all."""
    if selector is None:
        return False
    pairs = (selector.matchLabels or {}).items()
    return all(labels.get(key) == value for key, value in pairs) and all(
        NodeSelectorRequirement(
            requirement.key, requirement.operator, tuple(requirement.values or ())
        ).matches(labels.get(requirement.key))
        for requirement in selector.matchExpressions or ()
    )

"""Pods from templates: what the controllers of a cluster have in common.

Everything here is decided from what is given; names that a cluster draws by lot are derived from
what they stand for, so that the same question has the same answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta, OwnerReference

from winpod.cri.labels import OWNER_ANNOTATION
from winpod.node.pods import ENDED, condition, is_deleted
from winpod.node.requests import metadata_of
from winpod.windows.objects import Requirement

HASH_LABEL = "pod-template-hash"
REVISION_LABEL = "controller-revision-hash"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_PREFIX = 200


@dataclass(frozen=True, slots=True)
class Steps:
    """What a controller does next; `claims` and `jobs` come before the pods that need them.

    `again_at` is when to look again though nothing has changed.
    """

    create: tuple[v1.Pod, ...] = ()
    delete: tuple[v1.Pod, ...] = ()
    claims: tuple[v1.PersistentVolumeClaim, ...] = ()
    jobs: tuple[Any, ...] = ()
    remove_jobs: tuple[str, ...] = ()
    status: Mapping[str, Any] | None = None
    again_at: datetime | None = None


def soonest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def letters(*parts: object, count: int) -> str:
    """So many letters that no word is made of, always the same for the same parts."""
    digest = hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:count])


def template_hash(template: v1.PodTemplateSpec) -> str:
    told = json.dumps(template.to_dict(), sort_keys=True, default=str)
    return letters(told, count=10)


def free_name(prefix: str, taken: Iterable[str], *parts: object) -> str:
    """`prefix-xxxxx`, where nobody has it yet."""
    used = set(taken)
    number = 0
    while True:
        name = f"{prefix[:_LONGEST_PREFIX]}-{letters(prefix, *parts, number, count=5)}"
        if name not in used:
            return name
        number += 1


def pod_from(
    owner: Any,
    template: v1.PodTemplateSpec,
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> v1.Pod:
    metadata = template.metadata or ObjectMeta()
    spec = cast(v1.PodSpec, v1.PodSpec.from_dict(template.spec.to_dict() if template.spec else {}))
    made = ObjectMeta(
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
    return v1.Pod(metadata=made, spec=spec)


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


def has_ended(pod: v1.Pod) -> bool:
    return phase(pod) in ENDED


def is_active(pod: v1.Pod) -> bool:
    return not is_deleted(pod) and not has_ended(pod)


def is_ready(pod: v1.Pod) -> bool:
    ready = condition(pod.status, "Ready")
    return not is_deleted(pod) and ready is not None and ready.status == "True"


def ready_since(pod: v1.Pod) -> datetime | None:
    ready = condition(pod.status, "Ready")
    return ready.lastTransitionTime if ready and is_ready(pod) else None


def is_available(pod: v1.Pod, seconds: int, now: datetime) -> bool:
    """Ready for at least so long."""
    since = ready_since(pod)
    return is_ready(pod) and (
        not seconds or (since is not None and now >= since + timedelta(seconds=seconds))
    )


def share_of(amount: int | str | None, otherwise: str, total: int, *, up: bool) -> int:
    """A number of pods, or a percentage of them."""
    stated = otherwise if amount is None else amount
    if isinstance(stated, int):
        return stated
    percent = int(str(stated).removesuffix("%")) if str(stated).endswith("%") else None
    if percent is None:
        return int(stated)
    return -(-total * percent // 100) if up else total * percent // 100


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector chooses these labels; one that says nothing chooses all."""
    if selector is None:
        return False
    pairs = (selector.matchLabels or {}).items()
    return all(labels.get(key) == value for key, value in pairs) and all(
        Requirement(one.key, one.operator, tuple(one.values or ())).accepts(labels.get(one.key))
        for one in selector.matchExpressions or ()
    )

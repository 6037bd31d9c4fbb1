"""StatefulSet controller, with ordinals and claims per pod."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from winpod.k8s.models import apps_v1
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.k8s.pods import is_deleted
from winpod.play.pod_template import (
    REVISION_LABEL,
    ControllerActions,
    is_active,
    is_ready,
    is_terminal,
    label,
    name_of,
    pod_from_template,
    template_hash,
)

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


def reconcile_statefulset(owner: apps_v1.StatefulSet, pods: Sequence[v1.Pod]) -> ControllerActions:
    """Create pods in order, each once its predecessor is ready, or all at once with `Parallel`.

    Updates go from the highest ordinal to the lowest.
    """
    spec = owner.spec
    if spec is None or owner.metadata is None:
        return ControllerActions()
    replicas = 1 if spec.replicas is None else spec.replicas
    first = (spec.ordinals.start if spec.ordinals else None) or 0
    by_name = {name_of(pod): pod for pod in pods}
    ordinals = range(first, first + replicas)
    names = {ordinal: f"{owner.metadata.name}-{ordinal}" for ordinal in ordinals}
    hash_ = template_hash(spec.template)
    parallel = spec.podManagementPolicy == "Parallel"
    status = {
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "updatedReplicas": sum(label(pod, REVISION_LABEL) == hash_ for pod in pods),
        "wanted": replicas,
    }
    finished = tuple(pod for pod in pods if is_terminal(pod) and not is_deleted(pod))
    surplus = [pod for pod in pods if name_of(pod) not in names.values() and is_active(pod)]
    create: list[v1.Pod] = []
    claims: list[v1.PersistentVolumeClaim] = []
    for ordinal, name in names.items():
        pod = by_name.get(name)
        if pod is None:
            create.append(_pod_with_ordinal(owner, spec, ordinal, name, hash_))
            claims += _claims(owner, spec, name)
        if not parallel and (pod is None or not is_ready(pod)):
            break
    all_ready = all((pod := by_name.get(n)) and is_ready(pod) for n in names.values())
    delete = list(finished)
    if surplus and (parallel or all_ready):
        delete += surplus if parallel else [max(surplus, key=_ordinal)]
    elif not create and not surplus:
        delete += _outdated(spec, [by_name[n] for n in names.values() if n in by_name], hash_)
    return ControllerActions(tuple(create), tuple(delete), tuple(claims), status=status)


def _ordinal(pod: v1.Pod) -> int:
    return int(name_of(pod).rpartition("-")[2])


def _outdated(spec: apps_v1.StatefulSetSpec, pods: Sequence[v1.Pod], hash_: str) -> list[v1.Pod]:
    """Return the next pod to replace: the highest outdated ordinal whose successors are ready.

    A pod that is not ready is replaced at once, since availability does not decrease.
    """
    strategy = spec.updateStrategy
    if strategy and strategy.type == "OnDelete":
        return []
    rolling = strategy.rollingUpdate if strategy else None
    partition = (rolling.partition if rolling else None) or 0
    for pod in sorted(pods, key=_ordinal, reverse=True):
        if _ordinal(pod) < partition or is_deleted(pod):
            return []
        if label(pod, REVISION_LABEL) != hash_:
            return [pod]
        if not is_ready(pod):
            return []
    return []


def _pod_with_ordinal(
    owner: apps_v1.StatefulSet, spec: apps_v1.StatefulSetSpec, ordinal: int, name: str, hash_: str
) -> v1.Pod:
    labels = {REVISION_LABEL: hash_, POD_NAME_LABEL: name, INDEX_LABEL: str(ordinal)}
    pod = pod_from_template(owner, spec.template, name, labels)
    if pod.spec is None:
        return pod
    pod.spec.hostname = name
    pod.spec.subdomain = spec.serviceName
    claim_volumes = [
        v1.Volume(
            name=claim.metadata.name or "",
            persistentVolumeClaim=v1.PersistentVolumeClaimVolumeSource(
                claimName=f"{claim.metadata.name}-{name}"
            ),
        )
        for claim in spec.volumeClaimTemplates or ()
        if claim.metadata
    ]
    names = {volume.name for volume in claim_volumes}
    others = [volume for volume in pod.spec.volumes or () if volume.name not in names]
    pod.spec.volumes = [*others, *claim_volumes]
    return pod


def _claims(
    owner: apps_v1.StatefulSet, spec: apps_v1.StatefulSetSpec, pod: str
) -> Iterable[v1.PersistentVolumeClaim]:
    for template in spec.volumeClaimTemplates or ():
        if template.metadata and owner.metadata:
            yield v1.PersistentVolumeClaim(
                metadata=ObjectMeta(
                    name=f"{template.metadata.name}-{pod}",
                    namespace=owner.metadata.namespace,
                    labels=template.metadata.labels,
                ),
                spec=template.spec,
            )

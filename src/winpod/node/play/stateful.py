"""StatefulSets, whose pods have a number and keep their claims, and DaemonSets: one for a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightkube.models import apps_v1
from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.play.templates import (
    REVISION_LABEL,
    Steps,
    free_name,
    has_ended,
    is_active,
    is_ready,
    label,
    name_of,
    pod_from,
    share_of,
    template_hash,
)
from winpod.node.pods import is_deleted

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


def next_for_stateful_set(owner: apps_v1.StatefulSet, pods: Sequence[v1.Pod]) -> Steps:
    """In order, one after another is ready, unless they may come all at once; updates go from
    the last to the first."""
    spec = owner.spec
    if spec is None or owner.metadata is None:
        return Steps()
    wanted = 1 if spec.replicas is None else spec.replicas
    first = (spec.ordinals.start if spec.ordinals else None) or 0
    by_name = {name_of(pod): pod for pod in pods}
    numbers = range(first, first + wanted)
    names = {number: f"{owner.metadata.name}-{number}" for number in numbers}
    hash_ = template_hash(spec.template)
    at_once = spec.podManagementPolicy == "Parallel"
    status = {
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "updatedReplicas": sum(label(pod, REVISION_LABEL) == hash_ for pod in pods),
        "wanted": wanted,
    }
    ended = tuple(pod for pod in pods if has_ended(pod) and not is_deleted(pod))
    surplus = [pod for pod in pods if name_of(pod) not in names.values() and is_active(pod)]
    create: list[v1.Pod] = []
    claims: list[v1.PersistentVolumeClaim] = []
    for number, name in names.items():
        pod = by_name.get(name)
        if pod is None:
            create.append(_numbered(owner, spec, number, name, hash_))
            claims += _claims(owner, spec, name)
        if not at_once and (pod is None or not is_ready(pod)):
            break
    everyone_ready = all((pod := by_name.get(n)) and is_ready(pod) for n in names.values())
    delete = list(ended)
    if surplus and (at_once or everyone_ready):
        delete += surplus if at_once else [max(surplus, key=_number)]
    elif not create and not surplus:
        delete += _outdated(spec, [by_name[n] for n in names.values() if n in by_name], hash_)
    return Steps(tuple(create), tuple(delete), tuple(claims), status=status)


def _number(pod: v1.Pod) -> int:
    return int(name_of(pod).rpartition("-")[2])


def _outdated(spec: apps_v1.StatefulSetSpec, pods: Sequence[v1.Pod], hash_: str) -> list[v1.Pod]:
    """The next to be replaced: the last one, once those after it are ready. One that is not ready
    goes at once, because nothing gets worse."""
    strategy = spec.updateStrategy
    if strategy and strategy.type == "OnDelete":
        return []
    rolling = strategy.rollingUpdate if strategy else None
    partition = (rolling.partition if rolling else None) or 0
    for pod in sorted(pods, key=_number, reverse=True):
        if _number(pod) < partition or is_deleted(pod):
            return []
        if label(pod, REVISION_LABEL) != hash_:
            return [pod]
        if not is_ready(pod):
            return []
    return []


def _numbered(
    owner: apps_v1.StatefulSet, spec: apps_v1.StatefulSetSpec, number: int, name: str, hash_: str
) -> v1.Pod:
    labels = {REVISION_LABEL: hash_, POD_NAME_LABEL: name, INDEX_LABEL: str(number)}
    pod = pod_from(owner, spec.template, name, labels)
    if pod.spec is None:
        return pod
    pod.spec.hostname = name
    pod.spec.subdomain = spec.serviceName
    claimed = [
        v1.Volume(
            name=claim.metadata.name or "",
            persistentVolumeClaim=v1.PersistentVolumeClaimVolumeSource(
                claimName=f"{claim.metadata.name}-{name}"
            ),
        )
        for claim in spec.volumeClaimTemplates or ()
        if claim.metadata
    ]
    names = {volume.name for volume in claimed}
    others = [volume for volume in pod.spec.volumes or () if volume.name not in names]
    pod.spec.volumes = [*others, *claimed]
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


def next_for_daemon_set(
    owner: apps_v1.DaemonSet, pods: Sequence[v1.Pod], nodes: Sequence[str], taken: Iterable[str]
) -> Steps:
    """One for each of these nodes, which are those that it can run on."""
    spec = owner.spec
    if spec is None or owner.metadata is None:
        return Steps()
    hash_ = template_hash(spec.template)
    names, create = set(taken), []
    of_node = {_bound(pod): pod for pod in pods if is_active(pod)}
    for node in nodes:
        if not any(_bound(pod) == node and not has_ended(pod) for pod in pods):
            name = free_name(owner.metadata.name or "", names, node)
            names.add(name)
            pod = pod_from(owner, spec.template, name, {REVISION_LABEL: hash_})
            if pod.spec:
                pod.spec.nodeName = node
            create.append(pod)
    gone = [pod for node, pod in of_node.items() if node not in nodes]
    gone += [pod for pod in pods if has_ended(pod) and not is_deleted(pod)]
    ready = sum(map(is_ready, pods))
    status = {"replicas": len(of_node), "readyReplicas": ready, "wanted": len(nodes)}
    return Steps(tuple(create), (*gone, *_daemons_to_replace(spec, pods, hash_)), status=status)


def _daemons_to_replace(
    spec: apps_v1.DaemonSetSpec, pods: Sequence[v1.Pod], hash_: str
) -> list[v1.Pod]:
    strategy = spec.updateStrategy
    if strategy and strategy.type == "OnDelete":
        return []
    rolling = strategy.rollingUpdate if strategy else None
    most = share_of(rolling.maxUnavailable if rolling else None, "1", len(pods), up=True) or 1
    old = [pod for pod in pods if is_active(pod) and label(pod, REVISION_LABEL) != hash_]
    idle = [pod for pod in old if not is_ready(pod)]
    away = sum(not is_ready(pod) for pod in pods) - len(idle)
    serving = sorted((pod for pod in old if is_ready(pod)), key=name_of)
    return idle + serving[: max(most - away, 0)]


def _bound(pod: v1.Pod) -> str:
    return (pod.spec.nodeName if pod.spec else None) or ""

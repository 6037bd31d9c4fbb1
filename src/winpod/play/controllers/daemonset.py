"""DaemonSet controller: one pod on each node that it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from winpod.k8s.models import apps_v1
from winpod.k8s.models import core_v1 as v1
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
    resolve_int_or_percent,
    template_hash,
    unique_name,
)


def reconcile_daemonset(
    owner: apps_v1.DaemonSet, pods: Sequence[v1.Pod], nodes: Sequence[str], taken: Iterable[str]
) -> ControllerActions:
    """Keep one pod on each of the nodes, which are those the pod can run on."""
    spec = owner.spec
    if spec is None or owner.metadata is None:
        return ControllerActions()
    hash_ = template_hash(spec.template)
    names, create = set(taken), []
    by_node = {_node_of(pod): pod for pod in pods if is_active(pod)}
    for node in nodes:
        if not any(_node_of(pod) == node and not is_terminal(pod) for pod in pods):
            name = unique_name(owner.metadata.name or "", names, node)
            names.add(name)
            pod = pod_from_template(owner, spec.template, name, {REVISION_LABEL: hash_})
            if pod.spec:
                pod.spec.nodeName = node
            create.append(pod)
    removed = [pod for node, pod in by_node.items() if node not in nodes]
    removed += [pod for pod in pods if is_terminal(pod) and not is_deleted(pod)]
    ready = sum(map(is_ready, pods))
    status = {"replicas": len(by_node), "readyReplicas": ready, "wanted": len(nodes)}
    return ControllerActions(
        tuple(create), (*removed, *_daemons_to_replace(spec, pods, hash_)), status=status
    )


def _daemons_to_replace(
    spec: apps_v1.DaemonSetSpec, pods: Sequence[v1.Pod], hash_: str
) -> list[v1.Pod]:
    strategy = spec.updateStrategy
    if strategy and strategy.type == "OnDelete":
        return []
    rolling = strategy.rollingUpdate if strategy else None
    max_unavailable = (
        resolve_int_or_percent(rolling.maxUnavailable if rolling else None, "1", len(pods), up=True)
        or 1
    )
    old = [pod for pod in pods if is_active(pod) and label(pod, REVISION_LABEL) != hash_]
    unready = [pod for pod in old if not is_ready(pod)]
    unavailable = sum(not is_ready(pod) for pod in pods) - len(unready)
    ready = sorted((pod for pod in old if is_ready(pod)), key=name_of)
    return unready + ready[: max(max_unavailable - unavailable, 0)]


def _node_of(pod: v1.Pod) -> str:
    return (pod.spec.nodeName if pod.spec else None) or ""

"""Tests of mapping pods to workloads."""

from typing import Any

import msgspec

from winpod.operator.owners import (
    Key,
    ListedPod,
    OwnedWorkload,
    OwnerObject,
    live_pods,
    workloads_of,
)

SPEC: dict[str, Any] = {"containers": [{"name": "app", "image": "app"}]}


def owner(kind: str, name: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "controller": True}]


def pod(name: str, *made_by: str, **more: Any) -> ListedPod:
    metadata: dict[str, Any] = {"name": name, "namespace": "shop", "uid": name}
    if made_by:
        metadata["ownerReferences"] = owner(*made_by)
    status = {"phase": more.pop("phase", "Running"), "conditions": more.pop("conditions", [])}
    obj = {"metadata": metadata, "spec": SPEC | {"nodeName": "old"} | more, "status": status}
    return msgspec.convert(obj, ListedPod)


def maker(kind: str, name: str, *made_by: str, **spec: Any) -> dict[Key, OwnerObject]:
    metadata: dict[str, Any] = {"name": name, "namespace": "shop"}
    if made_by:
        metadata["ownerReferences"] = owner(*made_by)
    body = {"metadata": metadata, "spec": {"template": {"spec": SPEC}, **spec}}
    return {(kind, "shop", name): msgspec.convert(body, OwnerObject)}


def made(*pods: ListedPod, **makers: dict[Key, OwnerObject]) -> dict[str, OwnedWorkload]:
    known = {key: one for some in makers.values() for key, one in some.items()}
    return {str(one.workload): one for one in workloads_of(live_pods(pods), known)}


def test_pods_of_a_replica_set_belong_to_its_deployment() -> None:
    found = made(
        pod("web-1-a", "ReplicaSet", "web-1"),
        pod("web-2-a", "ReplicaSet", "web-2"),
        deployment=maker("Deployment", "web", replicas=2),
        first=maker("ReplicaSet", "web-1", "Deployment", "web"),
        second=maker("ReplicaSet", "web-2", "Deployment", "web"),
    )
    assert list(found) == ["Deployment shop/web"]
    workload = found["Deployment shop/web"].workload
    assert {p.name for p in workload.pods} == {"web-1-a", "web-2-a"}
    assert workload.replicas == 2


def test_standalone_replica_set_and_one_of_unknown_owner_differ() -> None:
    found = made(
        pod("own-a", "ReplicaSet", "own"),
        pod("rolled-a", "ReplicaSet", "rolled"),
        own=maker("ReplicaSet", "own"),
        rolled=maker("ReplicaSet", "rolled", "Rollout", "app"),
    )
    assert set(found) == {"ReplicaSet shop/own", "Rollout shop/app"}
    assert found["ReplicaSet shop/own"].workload.replicas == 1
    assert found["Rollout shop/app"].workload.replicas is None


def test_a_job_counts_while_it_has_pods_and_a_cron_job_always() -> None:
    cron = {"jobTemplate": {"spec": {"template": {"spec": SPEC}}}}
    found = made(
        pod("nightly-1-a", "Job", "nightly-1"),
        cron=maker("CronJob", "nightly", **cron),
        running=maker("Job", "nightly-1", "CronJob", "nightly"),
        over=maker("Job", "nightly-0", "CronJob", "nightly"),
    )
    assert set(found) == {"CronJob shop/nightly", "Job shop/nightly-1"}
    assert found["CronJob shop/nightly"].workload.pods == ()


def test_bare_pod_is_a_workload_and_mirror_pod_is_not() -> None:
    assert set(made(pod("alone"), pod("static", "Node", "old"))) == {"Pod shop/alone"}


def test_terminal_pods_are_skipped() -> None:
    assert made(pod("over", phase="Succeeded"), pod("broken", phase="Failed")) == {}


def test_a_pod_is_read_with_its_readiness_its_node_and_its_class() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    found = made(pod("alone", conditions=ready, runtimeClassName="windows-2019"))
    (one,) = found["Pod shop/alone"].workload.pods
    assert (one.node, one.is_ready, one.runtime_class) == ("old", True, "windows-2019")


def test_service_account_is_that_of_the_template() -> None:
    template = {"spec": SPEC | {"serviceAccountName": "puller"}}
    found = made(
        told=maker("Deployment", "told", template=template), silent=maker("Deployment", "silent")
    )
    assert found["Deployment shop/told"].account == "puller"
    assert found["Deployment shop/silent"].account == "default"


def test_daemon_set_has_no_replicas() -> None:
    workload = made(agent=maker("DaemonSet", "agent"))["DaemonSet shop/agent"].workload
    assert workload.pod.is_daemon
    assert workload.replicas is None

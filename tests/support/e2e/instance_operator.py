"""Operator of instances with a real control plane, and the objects it maintains."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import objects, rendered
from tests.support.e2e.instance_fleet import Fleet, Instance, config_map, key_secret
from tests.support.e2e.node_process import events_of, found
from tests.support.e2e.operator_process import NAMESPACE, OperatorProcess, configure
from tests.support.e2e.waiting import eventually
from winpod.instances.cluster.resource import CRD, instances_path

PATH = instances_path(NAMESPACE)
APPS = "/apis/apps/v1/namespaces/shop/deployments"
T = TypeVar("T")
SETTINGS = "instances: {joinSeconds: 900, drainSeconds: 900}\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Control plane with the RBAC rules of the chart and a bootstrap token for instances."""
    directory = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory, node_silence="1h") as running:
        running.create_namespace("shop")
        running.create_namespace("machines")
        chosen = (
            "instances.enabled=true,instances.payload.emptyDir.medium=Memory,"
            "settings.instances.machineNamespace=machines,"
            "settings.instances.network.kind=win-overlay"
        )
        running.create_namespace(NAMESPACE)
        rights = [
            obj
            for obj in objects(rendered(directory, "--set", chosen))
            if obj["apiVersion"].startswith("rbac") or obj["kind"] == "ServiceAccount"
        ]
        running.apply(CRD, *rights)
        info = {"name": "cluster-info", "namespace": "kube-public"}
        data = {"kubeconfig": running.public_kubeconfig()}
        running.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": info, "data": data})
        eventually(lambda: found(running, PATH))
        yield running


@pytest.fixture
def fleet(plane: ControlPlane, tmp_path: Path) -> Iterator[Fleet]:
    """Fleet with the operator's key and settings; the cluster is cleaned up afterwards."""
    made = Fleet(tmp_path / "fleet")
    with made.running():
        plane.apply(key_secret(NAMESPACE, made.key))
        configure(plane, SETTINGS)
        yield made
    for name in (one.node for one in made.instances.values()):
        plane.request("DELETE", f"/api/v1/nodes/{name}")
    clean(plane)


def clean(plane: ControlPlane) -> None:
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/windows-instances")
    for obj in found(plane, PATH)["items"]:
        obj["metadata"]["finalizers"] = []
        plane.request("PUT", f"{PATH}/{obj['metadata']['name']}", obj)
        plane.request("DELETE", f"{PATH}/{obj['metadata']['name']}")
    now = ("--all", "--grace-period=0", "--force")
    plane.kubectl("delete", "deployments,replicasets", "-n", "shop", "--all")
    plane.kubectl("delete", "pods,poddisruptionbudgets", "-n", "shop", *now)
    plane.kubectl("delete", "events", "-n", NAMESPACE, "--all")


@contextmanager
def operator(
    plane: ControlPlane, tmp_path: Path, files: Path | None = None
) -> Iterator[OperatorProcess]:
    options = ("--payload", str(files or tmp_path / "payload"))
    with OperatorProcess(plane, tmp_path / "operator", "one", *options) as running:
        yield running


def ask_for(plane: ControlPlane, *instances: Instance, **more: str) -> None:
    entries = {one.address: one.entry for one in instances}
    plane.apply(config_map(NAMESPACE, {**entries, **more}))


def status(plane: ControlPlane, instance: Instance | str) -> dict[str, Any]:
    name = instance if isinstance(instance, str) else instance.address
    return dict(found(plane, f"{PATH}/{name}").get("status", {}))


def is_phase(plane: ControlPlane, instance: Instance | str, phase: str) -> bool:
    return status(plane, instance).get("phase") == phase


def is_at(plane: ControlPlane, instance: Instance | str, version: str) -> bool:
    now = status(plane, instance)
    return (now.get("phase"), now.get("version")) == ("Ready", version)


def says(plane: ControlPlane, instance: Instance | str, words: str) -> bool:
    return words in status(plane, instance).get("message", "")


def until_told(plane: ControlPlane, instance: Instance | str, *wanted: str) -> dict[str, str]:
    """Wait for events with these reasons, and return events by reason: they follow the actions."""
    name = instance if isinstance(instance, str) else instance.address
    return eventually(
        lambda: dict(events_of(plane, NAMESPACE, name)), lambda events: set(wanted) <= events.keys()
    )


def deployment(
    plane: ControlPlane, name: str, replicas: int, toleration: dict[str, str] | None = None
) -> None:
    labels = {"app": name}
    spec = {
        "containers": [{"name": "app", "image": "registry.example/app:1"}],
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "tolerations": [toleration or {"key": "os", "operator": "Exists"}],
    }
    body = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    metadata = {"name": name, "namespace": "shop"}
    plane.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": body})


def ready(plane: ControlPlane, name: str) -> int:
    return int(found(plane, f"{APPS}/{name}").get("status", {}).get("readyReplicas", 0))


class Watching:
    """Count the instances that change at the same time, by their objects and by their nodes."""

    def __init__(self, plane: ControlPlane, nodes: Iterable[str]) -> None:
        self._plane = plane
        self._nodes = list(nodes)
        self.most_at_once = 0

    def look(self) -> Literal[True]:
        listed = found(self._plane, PATH)["items"]
        changing = sum(bool(one.get("status", {}).get("changingSince")) for one in listed)
        nodes = found(self._plane, "/api/v1/nodes")["items"]
        cordoned = sum(
            bool(one["spec"].get("unschedulable"))
            for one in nodes
            if one["metadata"]["name"] in self._nodes
        )
        self.most_at_once = max(self.most_at_once, changing, cordoned)
        return True


def wake(plane: ControlPlane, seconds: str) -> None:
    """Change a setting without effect, which makes the operator reconcile at once."""
    configure(plane, SETTINGS.replace("drainSeconds: 900", f"drainSeconds: 90{seconds}"))


def in_time(plane: ControlPlane, holds: Callable[[], T]) -> T:
    """Wait for a condition; a timeout reports the state of the instances."""
    try:
        return eventually(holds)
    except AssertionError as timeout:
        seen = {
            one["metadata"]["name"]: one.get("status", {}) for one in found(plane, PATH)["items"]
        }
        summary = {name: (one.get("phase"), one.get("message")) for name, one in seen.items()}
        raise AssertionError(f"{timeout}: {summary}") from None

"""Critical pods: preemption victims, and admission after they terminated."""

from pathlib import Path

import pytest

from tests.support.known_objects import node_config_in, read
from tests.support.pushed_images import push
from tests.support.small_node import SmallNode, pod_of, pulled
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import is_critical
from winpod.kubelet.admission.handler import PreemptionImpossible, select_preemption_victims
from winpod.kubelet.admission.predicates import allocated_by, insufficient_resources
from winpod.kubelet.node.node_options import parse_subnet
from winpod.network.simulated import SimulatedSandboxNetwork

FACTS = node_config_in(Path("/nowhere"), max_pods=20)
SYSTEM = 2_000_000_000


def sized(name: str, *, limits: bool = False, priority: int = 0, **requests: str) -> v1.Pod:
    resources = {"requests": requests, **({"limits": requests} if limits else {})}
    return pod_of("app:1", name, with_each=[{"resources": resources}], priority=priority)


def names(pods: list[v1.Pod]) -> list[str]:
    return [pod.metadata.name or "" for pod in pods if pod.metadata]


def going(pod: v1.Pod, *others: v1.Pod) -> list[str]:
    missing = insufficient_resources(pod, map(allocated_by, others), FACTS)
    return names(select_preemption_victims(pod, others, missing))


def test_system_and_static_pods_are_critical() -> None:
    assert is_critical(sized("a", priority=SYSTEM))
    assert not is_critical(sized("a", priority=SYSTEM - 1))
    annotations = {"kubernetes.io/config.source": "file"}
    own = {"name": "a", "uid": "6e7f", "annotations": annotations}
    assert is_critical(read(v1.Pod, {"metadata": own, "spec": {"containers": []}}))
    claims = {**own, "uid": "6e7f-11"}
    assert not is_critical(read(v1.Pod, {"metadata": claims, "spec": {"containers": []}}))


def test_nothing_missing_selects_no_victims() -> None:
    assert going(sized("new", cpu="1", priority=SYSTEM), sized("web", cpu="3")) == []


def test_pod_closest_to_shortage_is_only_victim() -> None:
    others = [sized("small", cpu="500m"), sized("large", cpu="2"), sized("middle", cpu="1")]
    new = sized("new", cpu="1400m", priority=SYSTEM)
    assert going(new, *others) == ["middle"]


def test_guaranteed_pods_are_preempted_last() -> None:
    promised = sized("promised", limits=True, cpu="2", memory="1Gi")
    asking = [sized("one", cpu="1"), sized("two", cpu="1")]
    new = sized("new", cpu="2", priority=SYSTEM)
    assert sorted(going(new, promised, *asking)) == ["one", "two"]
    larger = sized("new", cpu="3", priority=SYSTEM)
    assert sorted(going(larger, promised, *asking)) == ["one", "promised"]


def test_resources_of_terminating_pods_are_not_preempted_again() -> None:
    runs, ends = sized("runs", cpu="2"), sized("ends", cpu="2")
    new = sized("new", cpu="2", priority=SYSTEM)
    missing = list(insufficient_resources(new, map(allocated_by, (runs, ends)), FACTS))
    assert missing
    assert select_preemption_victims(new, [runs], missing, terminating=[ends]) == []
    assert names(select_preemption_victims(new, [runs, ends], missing)) == ["runs"]


def test_resources_are_weighted_equally() -> None:
    others = [
        sized("processors", cpu="3", memory="1Gi"),
        sized("memory", cpu="100m", memory="3Gi"),
        sized("both", cpu="900m", memory="3Gi"),
    ]
    new = sized("new", cpu="900m", memory="3Gi", priority=SYSTEM)
    assert going(new, *others) == ["both"]


def test_critical_pods_are_preempted_only_by_higher_priority() -> None:
    critical = sized("critical", cpu="4", priority=SYSTEM)
    with pytest.raises(PreemptionImpossible) as caught:
        going(sized("new", cpu="1", priority=SYSTEM), critical)
    assert str(caught.value) == (
        "no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"
    )
    assert going(sized("new", cpu="1", priority=SYSTEM + 1), critical) == ["critical"]


def asking(image: str, name: str, cpu: str, priority: int = 0) -> v1.Pod:
    resources = {"resources": {"requests": {"cpu": cpu}}}
    return pod_of(image, name, with_each=[resources], priority=priority)


async def running(node: SmallNode, name: str) -> None:
    await node.until(lambda: node.reporter.last(f"uid-{name}").phase == "Running")


async def test_critical_pod_starts_after_preemption(
    node: SmallNode, client: CriClient, image: str
) -> None:
    async with node.kubelet(client) as kubelet:
        for name in ("one", "two"):
            kubelet.update_pod(asking(image, name, "2"))
            await running(node, name)
        kubelet.update_pod(asking(image, "late", "1"))
        await node.until(lambda: node.reporter.last("uid-late").reason == "OutOfcpu")
        kubelet.update_pod(asking(image, "first", "2", SYSTEM))
        kubelet.update_pod(asking(image, "second", "2", SYSTEM))
        for name in ("first", "second"):
            await running(node, name)
        for name in ("one", "two"):
            status = node.reporter.last(f"uid-{name}")
            assert (status.phase, status.reason) == ("Failed", "Preempting")
            assert status.message == "Preempted in order to admit critical pod"
            assert status.containerStatuses[0].state.terminated
            (target,) = [c for c in status.conditions if c.type == "DisruptionTarget"]
            assert target.reason == "TerminationByKubelet"
            assert "Preempting" in node.reporter.reasons(f"uid-{name}")
        kubelet.update_pod(asking(image, "third", "1", SYSTEM))
        await node.until(lambda: node.reporter.last("uid-third").phase == "Failed")
        assert "error finding a set of pods to preempt" in node.reporter.last("uid-third").message


async def test_pods_wait_while_pod_network_is_not_ready(
    node: SmallNode, home: Path, registry: str
) -> None:
    networks = SimulatedSandboxNetwork(())
    node.runtime.networks = networks  # type: ignore[assignment]
    async with node.runtime.running() as client:
        image = await pulled(client, await push(home, f"{registry}/app:1", "2022"))
        async with node.kubelet(client) as kubelet:
            kubelet.update_pod(pod_of(image))
            await node.until(lambda: node.reporter.events)
            (about, reason, message, _) = node.reporter.events[0]
            assert (about, reason) == ("uid-web", "NetworkNotReady")
            assert message == (
                "network is not ready: container runtime network not ready: NetworkReady=false "
                "reason:NetworkPluginNotReady message:No pod subnet is configured."
            )
            assert node.reporter.last("uid-web").phase == "Pending"
            networks.set_subnets((parse_subnet("10.9.0.0/24"),))
            await node.until(lambda: node.reporter.last("uid-web").phase == "Running")

"""Room for critical pods: who goes, and that they have gone when the critical one comes."""

from pathlib import Path

import pytest
from lightkube.models import core_v1 as v1

from tests.cri.test_images import push
from tests.node.known_objects import facts_in, read
from tests.node.small_node import SmallNode, pod_of, pulled
from winpod.cri.rpc import Client
from winpod.network.simulated import SimulatedNetworks
from winpod.node.admission import lacks, taken_by
from winpod.node.pods import is_critical
from winpod.node.preemption import NotEnough, to_preempt
from winpod.node.settings import parse_subnet

FACTS = facts_in(Path("/nowhere"), max_pods=20)
SYSTEM = 2_000_000_000


def sized(name: str, *, limits: bool = False, priority: int = 0, **requests: str) -> v1.Pod:
    resources = {"requests": requests, **({"limits": requests} if limits else {})}
    return pod_of("app:1", name, with_each=[{"resources": resources}], priority=priority)


def names(pods: list[v1.Pod]) -> list[str]:
    return [pod.metadata.name or "" for pod in pods if pod.metadata]


def going(pod: v1.Pod, *others: v1.Pod) -> list[str]:
    missing = lacks(pod, map(taken_by, others), FACTS)
    return names(to_preempt(pod, others, missing))


def test_the_systems_pods_and_those_of_the_node_itself_are_critical() -> None:
    assert is_critical(sized("a", priority=SYSTEM))
    assert not is_critical(sized("a", priority=SYSTEM - 1))
    annotations = {"kubernetes.io/config.source": "file"}
    own = {"name": "a", "uid": "6e7f", "annotations": annotations}
    assert is_critical(read(v1.Pod, {"metadata": own, "spec": {"containers": []}}))
    claims = {**own, "uid": "6e7f-11"}
    assert not is_critical(read(v1.Pod, {"metadata": claims, "spec": {"containers": []}}))


def test_nobody_goes_while_there_is_room() -> None:
    assert going(sized("new", cpu="1", priority=SYSTEM), sized("web", cpu="3")) == []


def test_the_pod_closest_to_what_is_missing_goes_alone() -> None:
    others = [sized("small", cpu="500m"), sized("large", cpu="2"), sized("middle", cpu="1")]
    new = sized("new", cpu="1400m", priority=SYSTEM)
    assert going(new, *others) == ["middle"]


def test_pods_that_were_promised_their_resources_go_last() -> None:
    promised = sized("promised", limits=True, cpu="2", memory="1Gi")
    asking = [sized("one", cpu="1"), sized("two", cpu="1")]
    new = sized("new", cpu="2", priority=SYSTEM)
    assert sorted(going(new, promised, *asking)) == ["one", "two"]
    larger = sized("new", cpu="3", priority=SYSTEM)
    assert sorted(going(larger, promised, *asking)) == ["one", "promised"]


def test_nobody_goes_for_room_that_comes_anyway() -> None:
    runs, ends = sized("runs", cpu="2"), sized("ends", cpu="2")
    new = sized("new", cpu="2", priority=SYSTEM)
    missing = list(lacks(new, map(taken_by, (runs, ends)), FACTS))
    assert missing
    assert to_preempt(new, [runs], missing, ending=[ends]) == []
    assert names(to_preempt(new, [runs, ends], missing)) == ["runs"]


def test_several_resources_are_weighed_alike() -> None:
    others = [
        sized("processors", cpu="3", memory="1Gi"),
        sized("memory", cpu="100m", memory="3Gi"),
        sized("both", cpu="900m", memory="3Gi"),
    ]
    new = sized("new", cpu="900m", memory="3Gi", priority=SYSTEM)
    assert going(new, *others) == ["both"]


def test_critical_pods_go_only_for_more_important_ones() -> None:
    critical = sized("critical", cpu="4", priority=SYSTEM)
    with pytest.raises(NotEnough) as caught:
        going(sized("new", cpu="1", priority=SYSTEM), critical)
    assert str(caught.value) == (
        "no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"
    )
    assert going(sized("new", cpu="1", priority=SYSTEM + 1), critical) == ["critical"]


def asking(image: str, name: str, cpu: str, priority: int = 0) -> v1.Pod:
    resources = {"resources": {"requests": {"cpu": cpu}}}
    return pod_of(image, name, with_each=[resources], priority=priority)


async def running(node: SmallNode, name: str) -> None:
    await node.until(lambda: node.said.last(f"uid-{name}").phase == "Running")


async def test_a_critical_pod_comes_when_others_have_made_room(
    node: SmallNode, client: Client, image: str
) -> None:
    async with node.engine(client) as engine:
        for name in ("one", "two"):
            engine.set(asking(image, name, "2"))
            await running(node, name)
        engine.set(asking(image, "late", "1"))
        await node.until(lambda: node.said.last("uid-late").reason == "OutOfcpu")
        engine.set(asking(image, "first", "2", SYSTEM))
        engine.set(asking(image, "second", "2", SYSTEM))
        for name in ("first", "second"):
            await running(node, name)
        for name in ("one", "two"):
            status = node.said.last(f"uid-{name}")
            assert (status.phase, status.reason) == ("Failed", "Preempting")
            assert status.message == "Preempted in order to admit critical pod"
            assert status.containerStatuses[0].state.terminated
            (target,) = [c for c in status.conditions if c.type == "DisruptionTarget"]
            assert target.reason == "TerminationByKubelet"
            assert "Preempting" in node.said.reasons(f"uid-{name}")
        engine.set(asking(image, "third", "1", SYSTEM))
        await node.until(lambda: node.said.last("uid-third").phase == "Failed")
        assert "error finding a set of pods to preempt" in node.said.last("uid-third").message


async def test_pods_wait_while_the_runtime_cannot_connect_them(
    node: SmallNode, home: Path, registry: str
) -> None:
    networks = SimulatedNetworks(())
    node.runtime.networks = networks  # type: ignore[assignment]
    async with node.runtime.running() as client:
        image = await pulled(client, await push(home, f"{registry}/app:1", "2022"))
        async with node.engine(client) as engine:
            engine.set(pod_of(image))
            await node.until(lambda: node.said.events)
            (about, reason, message, _) = node.said.events[0]
            assert (about, reason) == ("uid-web", "NetworkNotReady")
            assert message == (
                "network is not ready: container runtime network not ready: NetworkReady=false "
                "reason:NetworkPluginNotReady message:No subnet for pods has been told."
            )
            assert node.said.last("uid-web").phase == "Pending"
            networks.use((parse_subnet("10.9.0.0/24"),))
            await node.until(lambda: node.said.last("uid-web").phase == "Running")

"""What a node does for itself beside its pods: volumes kept up to date, room made in time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import KnownObjects, read
from tests.node.small_node import PutBack, SmallNode, pod_of
from tests.node.test_engine import UID, is_ready, until_true
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.engine import Rhythm
from winpod.node.thresholds import Bound, Thresholds

OFTEN = Rhythm(volumes=0.2, relief=0.1)
MIB = 1024**2
SETTINGS = {"name": "settings", "configMap": {"name": "settings"}}


@dataclass
class OddObjects(KnownObjects):
    """Objects that nobody foresaw: so often they cannot even be read."""

    odd: int = 0

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        if self.odd:
            self.odd -= 1
            raise ArithmeticError("odd")
        return await super().config_map(namespace, name)


def set_mode(node: SmallNode, mode: str, **more: str) -> None:
    data = {"mode": mode, **more}
    node.objects.config_maps["shop/settings"] = read(v1.ConfigMap, {"data": data})


async def until_mounted(node: SmallNode, mode: str) -> None:
    file = node.facts.root / "pods" / UID / "volumes/settings/mode"

    async def is_so() -> bool:
        return await asyncio.to_thread(file.read_text) == mode

    await until_true(is_so)


async def until(holds: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return holds()

    await until_true(is_so)


async def test_a_node_that_runs_short_evicts_pods_until_it_no_longer_does(
    node: SmallNode, client: Client, image: str
) -> None:
    thresholds = Thresholds(Bound(950 * MIB), Bound(), Bound())
    node.facts = replace(node.facts, memory_bytes=1000 * MIB, thresholds=thresholds)
    async with node.engine(client, rhythm=OFTEN) as engine:
        engine.set(
            pod_of(image, "one", with_each=[{"resources": {"requests": {"memory": "40Mi"}}}])
        )
        await node.until(lambda: node.said.last("uid-one").phase == "Running")
        engine.set(pod_of(image, "two"))
        await node.until(lambda: node.said.last("uid-two").phase == "Failed")
        status = node.said.last("uid-two")
        assert status.reason == "Evicted"
        assert "Container app was using 32Mi, request is 0" in status.message
        assert any(c.type == "DisruptionTarget" for c in status.conditions)
        assert engine.pressures() == {"MemoryPressure"}
        engine.set(pod_of(image, "three"))
        await node.until(lambda: node.said.last("uid-three").phase == "Failed")
        assert "The node had condition: [MemoryPressure]" in node.said.last("uid-three").message
        assert node.said.last("uid-one").phase == "Running"


async def test_an_empty_directory_that_is_too_full_ends_its_pod(
    node: SmallNode, client: Client, image: str
) -> None:
    scratch = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    node.facts = replace(node.facts, thresholds=Thresholds(Bound(), Bound(), Bound()))
    async with node.engine(client, rhythm=OFTEN) as engine:
        engine.set(pod_of(image, volumes=scratch))
        await node.until(lambda: is_ready(node.said.last(UID)))
        file = node.facts.root / "pods" / UID / "volumes/scratch/large"
        await asyncio.to_thread(file.write_bytes, b"x" * (2 << 20))
        await node.until(lambda: node.said.last(UID).phase == "Failed")
        assert node.said.last(UID).reason == "Evicted"


async def test_mounted_config_maps_follow_their_object(
    node: SmallNode, client: Client, image: str
) -> None:
    set_mode(node, "slow")
    mount = {"name": "settings", "mountPath": "C:\\settings"}
    async with node.engine(client, rhythm=OFTEN) as engine:
        engine.set(pod_of(image, volumes=[SETTINGS], with_each=[{"volumeMounts": [mount]}]))
        await node.until(lambda: is_ready(node.said.last(UID)))
        await until_mounted(node, "slow")
        set_mode(node, "fast")
        await until_mounted(node, "fast")


async def test_volumes_that_cannot_be_written_hold_up_no_others(
    node: SmallNode, client: Client, image: str
) -> None:
    set_mode(node, "slow")
    through_a_file = [{"key": "mode", "path": "x"}, {"key": "new", "path": "x/y"}]
    sources = {
        "broken": {"name": "settings", "items": through_a_file, "optional": True},
        "web": {"name": "settings"},
    }
    async with node.engine(client, rhythm=OFTEN) as engine:
        for name, source in sources.items():
            engine.set(pod_of(image, name, volumes=[{"name": "settings", "configMap": source}]))
        await node.until(lambda: all(is_ready(node.said.last(f"uid-{one}")) for one in sources))
        set_mode(node, "fast", new="too")
        await until_mounted(node, "fast")


async def test_an_odd_mistake_ends_no_work_of_the_node(
    node: SmallNode, client: Client, image: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.objects = objects = OddObjects()
    set_mode(node, "slow")
    async with node.engine(client, rhythm=OFTEN) as engine:
        engine.set(pod_of(image, volumes=[SETTINGS]))
        await node.until(lambda: is_ready(node.said.last(UID)))
        objects.odd = 2
        set_mode(node, "fast")
        await until_mounted(node, "fast")
    assert "the node's own work broke off" in caplog.text


async def test_a_pressure_is_over_in_time_when_the_clock_is_put_back(
    node: SmallNode, client: Client, image: str
) -> None:
    clock, bound = PutBack(), Bound(950 * MIB)
    thresholds = Thresholds(bound, Bound(), Bound(), hold=timedelta(seconds=1))
    node.facts = replace(node.facts, memory_bytes=1000 * MIB, thresholds=thresholds)
    async with node.engine(client, rhythm=OFTEN, clock=clock) as engine:
        for name in ("one", "two"):
            engine.set(pod_of(image, name))
        await until(lambda: engine.pressures() == {"MemoryPressure"})
        clock.put_back()
        await until(lambda: not engine.pressures())


async def test_images_that_nobody_uses_go_in_time_when_the_clock_is_put_back(
    node: SmallNode, client: Client, image: str
) -> None:
    clock = PutBack()
    short = Thresholds(Bound(), Bound(1 << 62), Bound(), image_age=timedelta(seconds=1))
    node.facts = replace(node.facts, thresholds=short)

    async def is_gone() -> bool:
        asked = api.ImageStatusRequest(image=api.ImageSpec(image=image))
        return not (await client.call("ImageStatus", asked)).image.id

    async with node.engine(client, rhythm=OFTEN, clock=clock) as engine:
        await until(lambda: bool(engine.pressures()))
        clock.put_back()
        await until_true(is_gone)

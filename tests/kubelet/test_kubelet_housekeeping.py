"""Background tasks of the node: volume refresh, eviction, image garbage collection."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from tests.support.known_objects import KnownObjects, read
from tests.support.kubelet_pods import UID, is_ready, until_true
from tests.support.small_node import AdjustableClock, SmallNode, pod_of
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.eviction.thresholds import EvictionThresholds, ThresholdValue
from winpod.kubelet.kubelet import SyncPeriods

OFTEN = SyncPeriods(volumes=0.2, eviction=0.1)
MIB = 1024**2
SETTINGS = {"name": "settings", "configMap": {"name": "settings"}}


@dataclass
class OddObjects(KnownObjects):
    """Objects whose next `odd` reads raise an unexpected error."""

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
    file = node.node_config.root / "pods" / UID / "volumes/settings/mode"

    async def is_so() -> bool:
        return await asyncio.to_thread(file.read_text) == mode

    await until_true(is_so)


async def until(holds: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return holds()

    await until_true(is_so)


async def test_pods_are_evicted_until_pressure_ends(
    node: SmallNode, client: CriClient, image: str
) -> None:
    thresholds = EvictionThresholds(ThresholdValue(950 * MIB), ThresholdValue(), ThresholdValue())
    node.node_config = replace(node.node_config, memory_bytes=1000 * MIB, thresholds=thresholds)
    async with node.kubelet(client, sync_periods=OFTEN) as kubelet:
        kubelet.update_pod(
            pod_of(image, "one", with_each=[{"resources": {"requests": {"memory": "40Mi"}}}])
        )
        await node.until(lambda: node.reporter.last("uid-one").phase == "Running")
        kubelet.update_pod(pod_of(image, "two"))
        await node.until(lambda: node.reporter.last("uid-two").phase == "Failed")
        status = node.reporter.last("uid-two")
        assert status.reason == "Evicted"
        assert "Container app was using 32Mi, request is 0" in status.message
        assert any(c.type == "DisruptionTarget" for c in status.conditions)
        assert kubelet.pressures() == {"MemoryPressure"}
        kubelet.update_pod(pod_of(image, "three"))
        await node.until(lambda: node.reporter.last("uid-three").phase == "Failed")
        assert "The node had condition: [MemoryPressure]" in node.reporter.last("uid-three").message
        assert node.reporter.last("uid-one").phase == "Running"


async def test_pod_exceeding_empty_dir_limit_is_evicted(
    node: SmallNode, client: CriClient, image: str
) -> None:
    scratch = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    node.node_config = replace(
        node.node_config,
        thresholds=EvictionThresholds(ThresholdValue(), ThresholdValue(), ThresholdValue()),
    )
    async with node.kubelet(client, sync_periods=OFTEN) as kubelet:
        kubelet.update_pod(pod_of(image, volumes=scratch))
        await node.until(lambda: is_ready(node.reporter.last(UID)))
        file = node.node_config.root / "pods" / UID / "volumes/scratch/large"
        await asyncio.to_thread(file.write_bytes, b"x" * (2 << 20))
        await node.until(lambda: node.reporter.last(UID).phase == "Failed")
        assert node.reporter.last(UID).reason == "Evicted"


async def test_mounted_config_map_is_updated(
    node: SmallNode, client: CriClient, image: str
) -> None:
    set_mode(node, "slow")
    mount = {"name": "settings", "mountPath": "C:\\settings"}
    async with node.kubelet(client, sync_periods=OFTEN) as kubelet:
        kubelet.update_pod(pod_of(image, volumes=[SETTINGS], with_each=[{"volumeMounts": [mount]}]))
        await node.until(lambda: is_ready(node.reporter.last(UID)))
        await until_mounted(node, "slow")
        set_mode(node, "fast")
        await until_mounted(node, "fast")


async def test_unwritable_volume_does_not_delay_others(
    node: SmallNode, client: CriClient, image: str
) -> None:
    set_mode(node, "slow")
    through_a_file = [{"key": "mode", "path": "x"}, {"key": "new", "path": "x/y"}]
    sources = {
        "broken": {"name": "settings", "items": through_a_file, "optional": True},
        "web": {"name": "settings"},
    }
    async with node.kubelet(client, sync_periods=OFTEN) as kubelet:
        for name, source in sources.items():
            kubelet.update_pod(
                pod_of(image, name, volumes=[{"name": "settings", "configMap": source}])
            )
        await node.until(lambda: all(is_ready(node.reporter.last(f"uid-{one}")) for one in sources))
        set_mode(node, "fast", new="too")
        await until_mounted(node, "fast")


async def test_unexpected_error_does_not_stop_background_task(
    node: SmallNode, client: CriClient, image: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.objects = objects = OddObjects()
    set_mode(node, "slow")
    async with node.kubelet(client, sync_periods=OFTEN) as kubelet:
        kubelet.update_pod(pod_of(image, volumes=[SETTINGS]))
        await node.until(lambda: is_ready(node.reporter.last(UID)))
        objects.odd = 2
        set_mode(node, "fast")
        await until_mounted(node, "fast")
    assert "Volume refresh failed" in caplog.text


async def test_pressure_ends_in_time_after_clock_set_back(
    node: SmallNode, client: CriClient, image: str
) -> None:
    clock, bound = AdjustableClock(), ThresholdValue(950 * MIB)
    thresholds = EvictionThresholds(
        bound, ThresholdValue(), ThresholdValue(), transition_period=timedelta(seconds=1)
    )
    node.node_config = replace(node.node_config, memory_bytes=1000 * MIB, thresholds=thresholds)
    async with node.kubelet(client, sync_periods=OFTEN, clock=clock) as kubelet:
        for name in ("one", "two"):
            kubelet.update_pod(pod_of(image, name))
        await until(lambda: kubelet.pressures() == {"MemoryPressure"})
        clock.set_back()
        await until(lambda: not kubelet.pressures())


async def test_unused_images_are_removed_in_time_after_clock_set_back(
    node: SmallNode, client: CriClient, image: str
) -> None:
    clock = AdjustableClock()
    short = EvictionThresholds(
        ThresholdValue(), ThresholdValue(1 << 62), ThresholdValue(), image_age=timedelta(seconds=1)
    )
    node.node_config = replace(node.node_config, thresholds=short)

    async def is_gone() -> bool:
        asked = api.ImageStatusRequest(image=api.ImageSpec(image=image))
        return not (await client.call("ImageStatus", asked)).image.id

    async with node.kubelet(client, sync_periods=OFTEN, clock=clock) as kubelet:
        await until(lambda: bool(kubelet.pressures()))
        clock.set_back()
        await until_true(is_gone)

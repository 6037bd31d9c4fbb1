from datetime import timedelta

import pytest

from tests.support.runtime_pods import pod_of
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import with_fields
from winpod.kubelet.eviction.ranking import (
    MEMORY,
    EvictionSignals,
    ExceededThreshold,
    MeasuredContainer,
    MeasuredPod,
    eviction_message,
    exceeded_limit,
    exceeded_thresholds,
    select_victim,
)
from winpod.kubelet.eviction.thresholds import (
    EvictionThresholds,
    ThresholdValue,
    format_thresholds,
    parse_thresholds,
)
from winpod.kubelet.images.image_gc import ImageRecord, bytes_to_free, select_images
from winpod.kubelet.stats import DiskSpace
from winpod.quantities import format_duration, parse_duration

GIB, MIB = 1 << 30, 1 << 20
YOUNG = timedelta(minutes=2)
NOW = 1_000_000.0


def named(name: str, *, request: str = "", priority: int = 0) -> v1.Pod:
    resources = {"requests": {"memory": request}} if request else {}
    pod = pod_of({"name": "app", "resources": resources}, priority=priority)
    return with_fields(pod, metadata=with_fields(pod.metadata, name=name, uid=name))


def using(memory: int) -> MeasuredPod:
    return MeasuredPod({"app": MeasuredContainer(memory_bytes=memory)})


@pytest.mark.parametrize(
    ("memory", "node", "images", "short"),
    [
        (501 * MIB, 11, 16, []),
        (499 * MIB, 11, 16, ["memory"]),
        (501 * MIB, 9, 16, ["ephemeral-storage"]),
        (501 * MIB, 11, 14, ["ephemeral-storage"]),
        (499 * MIB, 9, 14, ["memory", "ephemeral-storage"]),
    ],
)
def test_thresholds_are_exceeded_below_their_value(
    memory: int, node: int, images: int, short: list[str]
) -> None:
    signals = EvictionSignals(
        DiskSpace(memory, 8 * GIB), DiskSpace(node, 100), DiskSpace(images, 100)
    )
    assert [one.resource for one in exceeded_thresholds(signals, EvictionThresholds())] == short


def test_victims_are_ranked_by_excess_and_priority() -> None:
    modest = named("modest", request="2Gi", priority=-5)
    greedy, greedier = named("greedy", request="1Gi"), named("greedier", request="1Gi")
    important = named("important", priority=100)
    critical = named("critical", priority=2_000_001_000)
    use = {
        "modest": using(GIB),
        "greedy": using(2 * GIB),
        "greedier": using(3 * GIB),
        "important": using(9 * GIB),
        "critical": using(99 * GIB),
    }
    pods = [modest, critical, important, greedy, greedier]
    order = []
    while pod := select_victim(pods, use, MEMORY):
        order.append(pod)
        pods.remove(pod)
    assert order == [greedier, greedy, important, modest]


def test_eviction_message_names_resource_and_containers_over_request() -> None:
    text = eviction_message(
        named("web", request="1Gi"), using(2 * GIB), ExceededThreshold(MEMORY, 500 * MIB, 400 * MIB)
    )
    assert text == (
        "The node was low on resource: memory. Threshold quantity: 500Mi, available: 400Mi. "
        "Container app was using 2Gi, request is 1Gi, has larger consumption of memory. "
    )


def test_exceeded_own_limit_is_reported() -> None:
    pod = pod_of(volumes=[{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}])
    assert exceeded_limit(pod, MeasuredPod({}, {"scratch": MIB})) == ""
    assert exceeded_limit(pod, MeasuredPod({}, {"scratch": MIB + 1})) == (
        'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '
    )
    limits = {"limits": {"ephemeral-storage": "1Mi"}}
    pod = pod_of({"name": "a", "resources": limits}, {"name": "b"})
    assert exceeded_limit(pod, MeasuredPod({"a": MeasuredContainer(0, 2 * MIB)})) == (
        'Container a exceeded its local ephemeral storage limit "1Mi". '
    )
    pod = pod_of({"name": "a", "resources": limits}, {"name": "b", "resources": limits})
    used = MeasuredPod({"a": MeasuredContainer(0, MIB)}, {"scratch": 2 * MIB})
    assert "exceeds the total limit of containers 2Mi" in exceeded_limit(pod, used)


def test_thresholds_are_parsed_like_kubelet() -> None:
    thresholds = parse_thresholds(
        "memory.available<1Gi,imagefs.available<12.5%", EvictionThresholds()
    )
    assert (thresholds.memory, thresholds.image_disk.bytes_of(1000)) == (ThresholdValue(GIB), 125)
    assert thresholds.node_disk == EvictionThresholds().node_disk
    assert parse_duration("1h2m3s") == timedelta(hours=1, minutes=2, seconds=3)
    for wrong in ("memory<1Gi", "memory.available<-1", "nodefs.available<101%", "a"):
        with pytest.raises(InvalidInput):
            parse_thresholds(wrong, EvictionThresholds())
    for wrong in ("", "5", "five", "1s2m"):
        with pytest.raises(InvalidInput):
            parse_duration(wrong)


def test_thresholds_are_formatted_like_kubelet() -> None:
    thresholds = parse_thresholds(
        "memory.available<1Gi,imagefs.available<12.5%", EvictionThresholds()
    )
    assert format_thresholds(thresholds) == {
        "memory.available": str(GIB),
        "nodefs.available": "10%",
        "imagefs.available": "12.5%",
    }
    for text in ("5m0s", "45s", "1h0m0s", "1h2m3s"):
        assert format_duration(parse_duration(text)) == text


def test_least_recently_used_images_are_removed_on_full_disk() -> None:
    assert bytes_to_free(DiskSpace(16, 100), EvictionThresholds()) == 0
    assert bytes_to_free(DiskSpace(10, 100), EvictionThresholds()) == 10
    assert bytes_to_free(DiskSpace(0, 0), EvictionThresholds()) == 0

    def image(name: str, minutes: int, age: int = 60) -> ImageRecord:
        return ImageRecord(name, 6, NOW - 60 * minutes, NOW - 60 * age)

    images = [image("new", 0, 1), image("used", 5), image("old", 50), image("older", 55)]
    assert select_images(images, 10, NOW, YOUNG) == ["older", "old"]
    assert select_images(images, 100, NOW, YOUNG) == ["older", "old", "used"]
    assert select_images(images, 0, NOW, YOUNG) == []

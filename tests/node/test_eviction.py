from datetime import timedelta

import pytest
from lightkube.models import core_v1 as v1

from tests.node.seen_pods import pod_of
from winpod.node.eviction import (
    MEMORY,
    ContainerUse,
    PodUse,
    Room,
    Shortage,
    Signals,
    broken_limit,
    eviction_message,
    next_to_go,
    shortages,
)
from winpod.node.image_garbage import ImageUse, to_remove, too_much
from winpod.node.pods import with_fields
from winpod.node.thresholds import (
    Bound,
    Thresholds,
    parse_duration,
    parse_thresholds,
    show_duration,
    show_thresholds,
)
from winpod.windows.errors import InvalidInput

GIB, MIB = 1 << 30, 1 << 20
YOUNG = timedelta(minutes=2)
NOW = 1_000_000.0


def named(name: str, *, request: str = "", priority: int = 0) -> v1.Pod:
    resources = {"requests": {"memory": request}} if request else {}
    pod = pod_of({"name": "app", "resources": resources}, priority=priority)
    return with_fields(pod, metadata=with_fields(pod.metadata, name=name, uid=name))


def using(memory: int) -> PodUse:
    return PodUse({"app": ContainerUse(memory_bytes=memory)})


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
def test_the_node_runs_short_below_its_thresholds(
    memory: int, node: int, images: int, short: list[str]
) -> None:
    signals = Signals(Room(memory, 8 * GIB), Room(node, 100), Room(images, 100))
    assert [one.resource for one in shortages(signals, Thresholds())] == short


def test_who_uses_more_than_asked_goes_first_then_by_priority_then_by_how_much() -> None:
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
    while pod := next_to_go(pods, use, MEMORY):
        order.append(pod)
        pods.remove(pod)
    assert order == [greedier, greedy, important, modest]


def test_an_eviction_says_what_was_short_and_who_used_more_than_it_asked_for() -> None:
    text = eviction_message(
        named("web", request="1Gi"), using(2 * GIB), Shortage(MEMORY, 500 * MIB, 400 * MIB)
    )
    assert text == (
        "The node was low on resource: memory. Threshold quantity: 500Mi, available: 400Mi. "
        "Container app was using 2Gi, request is 1Gi, has larger consumption of memory. "
    )


def test_a_pod_that_breaks_its_own_limit_is_named() -> None:
    pod = pod_of(volumes=[{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}])
    assert broken_limit(pod, PodUse({}, {"scratch": MIB})) == ""
    assert broken_limit(pod, PodUse({}, {"scratch": MIB + 1})) == (
        'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '
    )
    limits = {"limits": {"ephemeral-storage": "1Mi"}}
    pod = pod_of({"name": "a", "resources": limits}, {"name": "b"})
    assert broken_limit(pod, PodUse({"a": ContainerUse(0, 2 * MIB)})) == (
        'Container a exceeded its local ephemeral storage limit "1Mi". '
    )
    pod = pod_of({"name": "a", "resources": limits}, {"name": "b", "resources": limits})
    used = PodUse({"a": ContainerUse(0, MIB)}, {"scratch": 2 * MIB})
    assert "exceeds the total limit of containers 2Mi" in broken_limit(pod, used)


def test_thresholds_are_read_as_a_kubelet_reads_them() -> None:
    told = parse_thresholds("memory.available<1Gi,imagefs.available<12.5%", Thresholds())
    assert (told.memory, told.image_disk.of(1000)) == (Bound(GIB), 125)
    assert told.node_disk == Thresholds().node_disk
    assert parse_duration("1h2m3s") == timedelta(hours=1, minutes=2, seconds=3)
    for wrong in ("memory<1Gi", "memory.available<-1", "nodefs.available<101%", "a"):
        with pytest.raises(InvalidInput):
            parse_thresholds(wrong, Thresholds())
    for wrong in ("", "5", "five", "1s2m"):
        with pytest.raises(InvalidInput):
            parse_duration(wrong)


def test_thresholds_are_shown_as_a_kubelet_shows_them() -> None:
    told = parse_thresholds("memory.available<1Gi,imagefs.available<12.5%", Thresholds())
    assert show_thresholds(told) == {
        "memory.available": str(GIB),
        "nodefs.available": "10%",
        "imagefs.available": "12.5%",
    }
    for text in ("5m0s", "45s", "1h0m0s", "1h2m3s"):
        assert show_duration(parse_duration(text)) == text


def test_images_go_when_the_disk_is_full_the_longest_unused_first() -> None:
    assert too_much(Room(16, 100), Thresholds()) == 0
    assert too_much(Room(10, 100), Thresholds()) == 10
    assert too_much(Room(0, 0), Thresholds()) == 0

    def image(name: str, minutes: int, age: int = 60) -> ImageUse:
        return ImageUse(name, 6, NOW - 60 * minutes, NOW - 60 * age)

    images = [image("new", 0, 1), image("used", 5), image("old", 50), image("older", 55)]
    assert to_remove(images, 10, NOW, YOUNG) == ["older", "old"]
    assert to_remove(images, 100, NOW, YOUNG) == ["older", "old", "used"]
    assert to_remove(images, 0, NOW, YOUNG) == []

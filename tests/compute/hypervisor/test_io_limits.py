"""I/O limits of pods and containers in microVMs."""

import pytest

from winpod.compute.hypervisor.io_limits import IoLimits, pod_io_limits, rootfs_io_limits
from winpod.compute.resources import ResourceLimits

PREFIX = "io.microsoft.virtualmachine.storageqos."


def test_pod_io_limits_come_from_annotations() -> None:
    annotations = {f"{PREFIX}bandwidthmaximum": "1000000", f"{PREFIX}iopsmaximum": "50"}
    assert pod_io_limits(annotations) == IoLimits(1_000_000, 50)
    assert pod_io_limits({f"{PREFIX}iopsmaximum": "many"}) == IoLimits()


@pytest.mark.parametrize(
    ("container", "pod", "held"),
    [
        (None, 0, 0),
        (None, 5, 5),
        (5, 0, 5),
        (3, 5, 3),
        (5, 3, 3),
    ],
)
def test_lower_limit_applies(container: int | None, pod: int, held: int) -> None:
    limits = ResourceLimits(
        1, disk_bytes_per_second=container, disk_operations_per_second=container
    )
    assert rootfs_io_limits(limits, IoLimits(pod, pod)) == IoLimits(held, held)

"""The slower of what a pod and its container ask for holds on C:."""

import pytest

from winpod.compute.hypervisor.rates import Rates, rates_of_drive, rates_of_pod
from winpod.compute.resources import Enforced

PREFIX = "io.microsoft.virtualmachine.storageqos."


def test_a_pod_asks_by_annotations() -> None:
    asked = {f"{PREFIX}bandwidthmaximum": "1000000", f"{PREFIX}iopsmaximum": "50"}
    assert rates_of_pod(asked) == Rates(1_000_000, 50)
    assert rates_of_pod({f"{PREFIX}iopsmaximum": "many"}) == Rates()


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
def test_the_lower_of_two_limits_holds(container: int | None, pod: int, held: int) -> None:
    limits = Enforced(1, disk_bytes_per_second=container, disk_operations_per_second=container)
    assert rates_of_drive(limits, Rates(pod, pod)) == Rates(held, held)

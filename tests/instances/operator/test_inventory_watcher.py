"""The inventory while the API server answers only some requests."""

from __future__ import annotations

import logging
import math

import pytest

from tests.support.instance_inventory import (
    FORBIDDEN,
    machine,
    machines_path,
    running_controller,
    set_entries,
    until,
)
from tests.support.instance_operator import PATH, OperatorHarness
from winpod.errors import Unavailable, WinpodError
from winpod.instances.operator.machines import GROUP
from winpod.k8s.client import ApiError
from winpod.operator.instance_settings import InstanceSettings

AWAY = Unavailable("the API server cannot now: 503.")
SETTINGS = InstanceSettings(machine_namespace="machines")


def names(harness: OperatorHarness) -> set[str]:
    return {path.rpartition("/")[2] for path in harness.api.objects if path.startswith(f"{PATH}/")}


@pytest.mark.parametrize("times", [1, 3])
async def test_instance_stays_while_its_machine_is_unknown(times: int) -> None:
    harness = OperatorHarness(SETTINGS)
    await harness.instance("machine-m", machine="m", hostKey="pinned")
    await harness.instance("machine-gone", machine="gone", hostKey="pinned")
    await harness.api.put(f"{machines_path()}/m", machine())
    for path in (machines_path(), GROUP):
        harness.api.refuse(path, AWAY, times)
    async with running_controller(harness):
        await until(lambda: "machine-gone" not in names(harness))
        assert harness.status("machine-m")["hostKey"] == "pinned"
        assert ("DELETE", f"{PATH}/machine-m") not in harness.api.requests


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN, ApiError(404, "NotFound", "no such kind.")])
async def test_failed_machine_listing_is_logged_and_blocks_nothing_else(
    error: WinpodError, caplog: pytest.LogCaptureFixture
) -> None:
    harness = OperatorHarness(SETTINGS)
    await harness.instance("machine-m", machine="m", hostKey="pinned")
    await set_entries(harness, **{"192.0.2.8": "username=me"})
    harness.api.refuse(machines_path(), error, math.inf)
    with caplog.at_level(logging.WARNING):
        async with running_controller(harness):
            await until(lambda: "192.0.2.8" in names(harness))
            await until(lambda: harness.api.requests.count(("GET", machines_path())) > 3)
            assert names(harness) == {"192.0.2.8", "machine-m"}
    messages = [one.getMessage() for one in caplog.records if "Machines in machines" in one.message]
    assert len(messages) == 1
    assert str(error) in messages[0]


async def test_entry_with_a_machine_address_waits_for_the_machine_list() -> None:
    harness = OperatorHarness(SETTINGS)
    await harness.instance("machine-m", machine="m")
    await harness.api.put(f"{machines_path()}/m", machine())
    await set_entries(harness, **{"192.0.2.7": "username=me", "192.0.2.8": "username=me"})
    harness.api.refuse(machines_path(), AWAY, 5)
    async with running_controller(harness):
        await until(lambda: "192.0.2.8" in names(harness))
        await until(lambda: harness.context.machines.is_synced)
        assert names(harness) == {"192.0.2.8", "machine-m"}
        assert [entry.key for entry in harness.inputs.entries.invalid] == ["192.0.2.7"]


async def test_machines_are_watched_in_the_configured_namespace() -> None:
    harness = OperatorHarness(SETTINGS)
    await harness.api.put(f"{machines_path()}/here", machine("192.0.2.7"))
    await harness.api.put(f"{machines_path('other')}/there", machine("192.0.2.9"))
    async with running_controller(harness):
        await until(lambda: names(harness) == {"machine-here"})
        harness.settings = InstanceSettings(machine_namespace="other")
        harness.context.machines.settings_changed()
        await until(lambda: "machine-there" in names(harness))
        await harness.api.put(f"{machines_path('other')}/new", machine("192.0.2.10"))
        await until(lambda: "machine-new" in names(harness))
        await until(lambda: ("DELETE", f"{PATH}/machine-here") in harness.api.requests)


async def test_settings_without_namespace_remove_no_machine_instances() -> None:
    """As with settings that cannot be read, or a deleted ConfigMap."""
    harness = OperatorHarness(InstanceSettings())
    await harness.instance("machine-m", machine="m", hostKey="pinned")
    await set_entries(harness, **{"192.0.2.8": "username=me"})
    async with running_controller(harness):
        await until(lambda: "192.0.2.8" in names(harness))
        assert "machine-m" in names(harness)

"""What is asked for, while the API server answers some questions and others not."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.instances.operator.caring import NAMESPACE, PATH, Caring
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.inputs import INSTANCES
from winpod.instances.operator.controller import Instances
from winpod.instances.operator.machines import GROUP
from winpod.node.api import Refused
from winpod.windows.errors import Unavailable, WinpodError

AWAY = Unavailable("the API server cannot now: 503.")
FORBIDDEN = Refused(403, "Forbidden", "the API server refused: you cannot list machines.")
SETTINGS = InstanceSettings(machine_namespace="machines")


def folder(namespace: str = "machines") -> str:
    return f"{GROUP}/namespaces/{namespace}/machines"


def machine(address: str = "192.0.2.7") -> dict[str, Any]:
    labels = {"machine.openshift.io/os-id": "Windows"}
    addresses = [{"type": "InternalIP", "address": address}]
    return {"metadata": {"labels": labels}, "status": {"addresses": addresses}}


async def ask_for(caring: Caring, **entries: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{INSTANCES}"
    await caring.api.put(path, {"data": entries})


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@asynccontextmanager
async def leading(caring: Caring) -> AsyncIterator[None]:
    """An operator that has just begun to lead."""
    instances, care = Instances(NAMESPACE), caring.care
    caring.on_change = instances.everything_changed
    working = [
        asyncio.ensure_future(one)
        for one in (care.objects.run(), care.inputs.run(), instances.run(care))
    ]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


def names(caring: Caring) -> set[str]:
    return {path.rpartition("/")[2] for path in caring.api.objects if path.startswith(f"{PATH}/")}


@pytest.mark.parametrize("times", [1, 3])
async def test_an_instance_stays_while_nobody_knows_whether_its_machine_does(times: int) -> None:
    caring = Caring(SETTINGS)
    await caring.instance("machine-m", machine="m", hostKey="pinned")
    await caring.instance("machine-gone", machine="gone", hostKey="pinned")
    await caring.api.put(f"{folder()}/m", machine())
    for path in (folder(), GROUP):
        caring.api.refuse(path, AWAY, times)
    async with leading(caring):
        await until(lambda: "machine-gone" not in names(caring))
        assert caring.status("machine-m")["hostKey"] == "pinned"
        assert ("DELETE", f"{PATH}/machine-m") not in caring.api.asked


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN, Refused(404, "NotFound", "no such kind.")])
async def test_machines_that_cannot_be_listed_are_told_and_keep_nobody_waiting(
    error: WinpodError, caplog: pytest.LogCaptureFixture
) -> None:
    caring = Caring(SETTINGS)
    await caring.instance("machine-m", machine="m", hostKey="pinned")
    await ask_for(caring, **{"192.0.2.8": "username=me"})
    caring.api.refuse(folder(), error, math.inf)
    with caplog.at_level(logging.WARNING):
        async with leading(caring):
            await until(lambda: "192.0.2.8" in names(caring))
            await until(lambda: caring.api.asked.count(("GET", folder())) > 3)
            assert names(caring) == {"192.0.2.8", "machine-m"}
    told = [one.getMessage() for one in caplog.records if "Machines in machines" in one.message]
    assert len(told) == 1
    assert str(error) in told[0]


async def test_an_entry_at_a_machine_s_address_is_not_an_instance_while_machines_are_unknown() -> (
    None
):
    caring = Caring(SETTINGS)
    await caring.instance("machine-m", machine="m")
    await caring.api.put(f"{folder()}/m", machine())
    await ask_for(caring, **{"192.0.2.7": "username=me", "192.0.2.8": "username=me"})
    caring.api.refuse(folder(), AWAY, 5)
    async with leading(caring):
        await until(lambda: "192.0.2.8" in names(caring))
        await until(lambda: caring.care.machines.are_known)
        assert names(caring) == {"192.0.2.8", "machine-m"}
        assert [bad.key for bad in caring.inputs.entries.bad] == ["192.0.2.7"]


async def test_machines_are_followed_where_the_settings_say_that_they_are_now() -> None:
    caring = Caring(SETTINGS)
    await caring.api.put(f"{folder()}/here", machine("192.0.2.7"))
    await caring.api.put(f"{folder('other')}/there", machine("192.0.2.9"))
    async with leading(caring):
        await until(lambda: names(caring) == {"machine-here"})
        caring.settings = InstanceSettings(machine_namespace="other")
        caring.care.machines.settings_changed()
        await until(lambda: "machine-there" in names(caring))
        await caring.api.put(f"{folder('other')}/new", machine("192.0.2.10"))
        await until(lambda: "machine-new" in names(caring))
        await until(lambda: ("DELETE", f"{PATH}/machine-here") in caring.api.asked)


async def test_settings_that_name_no_namespace_take_no_machine_away() -> None:
    """As they do where the settings cannot be read, or their ConfigMap is deleted."""
    caring = Caring(InstanceSettings())
    await caring.instance("machine-m", machine="m", hostKey="pinned")
    await ask_for(caring, **{"192.0.2.8": "username=me"})
    async with leading(caring):
        await until(lambda: "192.0.2.8" in names(caring))
        assert "machine-m" in names(caring)

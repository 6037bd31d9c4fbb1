"""Inventories of the instance operator: entries and Machines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.instance_operator import NAMESPACE, OperatorHarness
from winpod.instances.operator.controller import InstanceController
from winpod.instances.operator.machines import GROUP
from winpod.k8s.client import ApiError
from winpod.labels import INSTANCES_CONFIG_MAP

FORBIDDEN = ApiError(403, "Forbidden", "the API server refused: you cannot list machines.")


def machines_path(namespace: str = "machines") -> str:
    return f"{GROUP}/namespaces/{namespace}/machines"


def machine(address: str = "192.0.2.7") -> dict[str, Any]:
    labels = {"machine.openshift.io/os-id": "Windows"}
    addresses = [{"type": "InternalIP", "address": address}]
    return {"metadata": {"labels": labels}, "status": {"addresses": addresses}}


async def set_entries(harness: OperatorHarness, **entries: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{INSTANCES_CONFIG_MAP}"
    await harness.api.put(path, {"data": entries})


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running_controller(harness: OperatorHarness) -> AsyncIterator[None]:
    """Run an operator that has just become the leader."""
    instances, context = InstanceController(NAMESPACE), harness.context
    harness.on_change = instances.on_any_change
    working = [
        asyncio.ensure_future(one)
        for one in (context.objects.run(), context.inputs.run(), instances.run(context))
    ]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

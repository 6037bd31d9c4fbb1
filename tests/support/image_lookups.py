"""Image lookup of the operator, with its metrics."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from tests.support.image_samples import windows
from winpod.images.lookup import CacheLimits, ImageLookup
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.image_lookup import RegistryQueue, operator_lookup

V2019, V2022 = windows("10.0.17763.805"), windows("10.0.20348.2113")


class LookupMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = AdmissionMetrics(self.registry)

    def lookups(self, result: str) -> float:
        name = "winpod_image_lookups_total"
        return self.registry.get_sample_value(name, {"result": result}) or 0


@asynccontextmanager
async def open_lookup(
    tag_seconds: float = 300,
    numbers: LookupMetrics | None = None,
    limits: CacheLimits | None = None,
    queue: RegistryQueue | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[ImageLookup]:
    metrics = (numbers or LookupMetrics()).metrics
    images = operator_lookup(lambda: tag_seconds, metrics, limits, queue, clock)
    try:
        yield images
    finally:
        await images.close()

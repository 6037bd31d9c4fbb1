"""Leader election with a Lease: only the holder works, and only while it renews the lease.

Expiry is measured by elapsed local time between observations, not by timestamps of the lease, so
clocks need not agree. A leader that cannot renew stops well before another may acquire the lease; a
leader that stops releases it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from winpod.clock import utc_now
from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.models import coordination_v1 as coordination
from winpod.k8s.models.meta_v1 import ObjectMeta

LEASE_SECONDS = 15
RENEW_DEADLINE = 10.0
RETRY_PERIOD = 2.0
_RELEASE_TIMEOUT = 10.0
_log = logging.getLogger(__name__)


def unique_identity() -> str:
    """Return the host name with a random suffix.

    The suffix distinguishes operators on one host, and an operator from its predecessor: after a
    crash it waits until the old lease has expired.
    """
    return f"{platform.node()}-{secrets.token_hex(4)}"


class LeaderElector:
    """Runs work while it holds the lease. `identity` must be unique."""

    def __init__(self, api: ApiClient, namespace: str, lease: str, identity: str) -> None:
        self.is_leader = False
        self._api = api
        self._identity = identity
        self._namespace = namespace
        self._lease = lease
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._observed: tuple[object, float] = (None, 0.0)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the work whenever this instance leads; it is cancelled when leadership is lost."""
        while True:
            await self._acquire()
            _log.info("%s became leader", self._identity)
            self.is_leader = True
            task = asyncio.ensure_future(work())
            try:
                await self._renew_while(task)
            finally:
                self.is_leader = False
                await _cancel(task)
                await self._release()
            _log.warning("%s stopped leading", self._identity)

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try_acquire_or_renew():
                    return
            except WinpodError as error:
                _log.warning("Failed to acquire lease: %s", error)
            await asyncio.sleep(RETRY_PERIOD * random.uniform(0.8, 1.2))  # noqa: S311

    async def _renew_while(self, task: asyncio.Future[None]) -> None:
        renewed = time.monotonic()
        while (left := renewed + RENEW_DEADLINE - time.monotonic()) > 0:
            done, _ = await asyncio.wait((task,), timeout=min(RETRY_PERIOD, left))
            if done:
                return
            requested_at = time.monotonic()
            try:
                async with asyncio.timeout(renewed + RENEW_DEADLINE - requested_at):
                    if not await self._try_acquire_or_renew():
                        return
                renewed = requested_at
            except (WinpodError, TimeoutError) as error:
                _log.warning("Failed to renew lease: %s", error or "timed out")

    async def _try_acquire_or_renew(self) -> bool:
        """Acquire or renew the lease; another holder's lease is acquired only after it expired."""
        path = f"{self._leases}/{self._lease}"
        lease = await self._api.get(coordination.Lease, path)
        if lease is None:
            metadata = ObjectMeta(name=self._lease, namespace=self._namespace)
            await self._api.create(
                self._leases, coordination.Lease(metadata=metadata, spec=self._spec(None))
            )
            return True
        if not self._may_acquire(lease.spec or coordination.LeaseSpec()):
            return False
        lease.spec = self._spec(lease.spec)
        await self._api.replace(path, lease)
        return True

    def _may_acquire(self, spec: coordination.LeaseSpec) -> bool:
        if spec.holderIdentity in (None, "", self._identity):
            return True
        record, since = self._observed
        if record != (now := (spec.holderIdentity, spec.renewTime)):
            self._observed = (now, time.monotonic())
            return False
        return time.monotonic() > since + (spec.leaseDurationSeconds or LEASE_SECONDS)

    def _spec(self, before: coordination.LeaseSpec | None) -> coordination.LeaseSpec:
        if before and before.holderIdentity == self._identity:
            acquired, transitions = before.acquireTime, before.leaseTransitions
        else:
            acquired, transitions = (
                _now(),
                ((before and before.leaseTransitions) or 0) + bool(before),
            )
        return coordination.LeaseSpec(
            holderIdentity=self._identity,
            leaseDurationSeconds=LEASE_SECONDS,
            acquireTime=acquired,
            renewTime=_now(),
            leaseTransitions=transitions,
        )

    async def _release(self) -> None:
        path = f"{self._leases}/{self._lease}"
        with contextlib.suppress(WinpodError, TimeoutError):
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                lease = await self._api.get(coordination.Lease, path)
                if lease and lease.spec and lease.spec.holderIdentity == self._identity:
                    lease.spec.holderIdentity = ""
                    lease.spec.renewTime = _now()
                    await self._api.replace(path, lease)


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception:
        _log.exception("Leader work failed")


def _now() -> datetime:
    """Return the current time with microseconds, which the API requires."""
    now = utc_now()
    return now if now.microsecond else now + timedelta(microseconds=1)

"""One of several operators acts: whoever holds a Lease, and only as long as it is renewed.

Time is what passes here between two looks, never what a lease says, so that clocks need not agree.
Who cannot renew stops acting well before anybody else may begin; who stops gives the lease back.
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
from datetime import UTC, datetime, timedelta

from lightkube.models import coordination_v1 as coordination
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError

LEASE = "winpod-operator"
LEASE_SECONDS = 15
RENEW_WITHIN = 10.0
LOOK_SECONDS = 2.0
_LAST_SECONDS = 10.0
_log = logging.getLogger(__name__)


def unique_identity() -> str:
    """This machine's name, and what tells two operators there apart, and one from the one before.

    One that was killed is so not known when it is back: it waits until its lease has run out.
    """
    return f"{platform.node()}-{secrets.token_hex(4)}"


class Leading:
    """`identity` is nobody else's, or two would both believe that they lead."""

    def __init__(self, api: ApiServer, namespace: str, identity: str) -> None:
        self.is_leader = False
        self._api = api
        self._identity = identity
        self._namespace = namespace
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._seen: tuple[object, float] = (None, 0.0)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work whenever this one leads. It is cancelled when it no longer does."""
        while True:
            await self._until_taken()
            _log.info("%s leads", self._identity)
            self.is_leader = True
            working = asyncio.ensure_future(work())
            try:
                await self._renew_while(working)
            finally:
                self.is_leader = False
                await _ended(working)
                await self._give_back()
            _log.warning("%s no longer leads", self._identity)

    async def _until_taken(self) -> None:
        while True:
            try:
                if await self._take():
                    return
            except WinpodError as error:
                _log.warning("the lease cannot be had: %s", error)
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def _renew_while(self, working: asyncio.Future[None]) -> None:
        renewed = time.monotonic()
        while (left := renewed + RENEW_WITHIN - time.monotonic()) > 0:
            done, _ = await asyncio.wait((working,), timeout=min(LOOK_SECONDS, left))
            if done:
                return
            asked = time.monotonic()
            try:
                async with asyncio.timeout(renewed + RENEW_WITHIN - asked):
                    if not await self._take():
                        return
                renewed = asked
            except (WinpodError, TimeoutError) as error:
                _log.warning("the lease is not renewed: %s", error or "no answer in time")

    async def _take(self) -> bool:
        """Whether the lease is ours now; anybody else's is taken only when it has run out."""
        path = f"{self._leases}/{LEASE}"
        lease = await self._api.get(coordination.Lease, path)
        if lease is None:
            metadata = ObjectMeta(name=LEASE, namespace=self._namespace)
            await self._api.create(
                self._leases, coordination.Lease(metadata=metadata, spec=self._spec(None))
            )
            return True
        if not self._may_take(lease.spec or coordination.LeaseSpec()):
            return False
        lease.spec = self._spec(lease.spec)
        await self._api.replace(path, lease)
        return True

    def _may_take(self, spec: coordination.LeaseSpec) -> bool:
        if spec.holderIdentity in (None, "", self._identity):
            return True
        record, since = self._seen
        if record != (now := (spec.holderIdentity, spec.renewTime)):
            self._seen = (now, time.monotonic())
            return False
        return time.monotonic() > since + (spec.leaseDurationSeconds or LEASE_SECONDS)

    def _spec(self, before: coordination.LeaseSpec | None) -> coordination.LeaseSpec:
        if before and before.holderIdentity == self._identity:
            acquired, turns = before.acquireTime, before.leaseTransitions
        else:
            acquired, turns = _now(), ((before and before.leaseTransitions) or 0) + bool(before)
        return coordination.LeaseSpec(
            holderIdentity=self._identity,
            leaseDurationSeconds=LEASE_SECONDS,
            acquireTime=acquired,
            renewTime=_now(),
            leaseTransitions=turns,
        )

    async def _give_back(self) -> None:
        path = f"{self._leases}/{LEASE}"
        with contextlib.suppress(WinpodError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                lease = await self._api.get(coordination.Lease, path)
                if lease and lease.spec and lease.spec.holderIdentity == self._identity:
                    lease.spec.holderIdentity = ""
                    lease.spec.renewTime = _now()
                    await self._api.replace(path, lease)


async def _ended(working: asyncio.Future[None]) -> None:
    working.cancel()
    try:
        await working
    except asyncio.CancelledError:
        pass
    except Exception:
        _log.exception("what the leader does broke off")


def _now() -> datetime:
    """With microseconds, which the API insists on."""
    now = datetime.now(UTC)
    return now if now.microsecond else now + timedelta(microseconds=1)

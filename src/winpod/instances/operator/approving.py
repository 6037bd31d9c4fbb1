"""Certificates of instances approved, as `signing` judges; what is not theirs is left to others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import ip_address

from lightkube.models import certificates_v1 as certificates

from winpod.instances.cluster.approval import REQUESTS, approve, name_of, request_of
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.cluster.signing import Known, Verdict, judge
from winpod.instances.operator.care import Care
from winpod.node.api import ApiServer
from winpod.node.following import Following
from winpod.windows.errors import WinpodError

_LOOK_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Approving:
    """What nobody has decided about waits here, and is judged again as instances change."""

    def __init__(self, api: ApiServer, care: Care) -> None:
        self._api = api
        self._care = care
        self._waiting: dict[str, certificates.CertificateSigningRequest] = {}
        self._told: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._following = Following(api, certificates.CertificateSigningRequest, REQUESTS, self)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._following.run())
            group.create_task(self._judge_all())

    async def listed(self, objects: Sequence[certificates.CertificateSigningRequest]) -> None:
        self._waiting = {}
        for obj in objects:
            self.changed(obj)

    def changed(self, obj: certificates.CertificateSigningRequest) -> None:
        name = name_of(obj)
        if obj.status and (obj.status.conditions or obj.status.certificate):
            self._waiting.pop(name, None)
        else:
            self._waiting[name] = obj
            self._changed.set()

    def deleted(self, obj: certificates.CertificateSigningRequest) -> None:
        self._waiting.pop(name_of(obj), None)
        self._told.pop(name_of(obj), None)

    async def _judge_all(self) -> None:
        await self._care.objects.until_known()
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            for name, obj in list(self._waiting.items()):
                try:
                    await self._judge(name, obj)
                except WinpodError as error:
                    _log.info("the request %s is looked at again: %s", name, error)

    async def _judge(self, name: str, obj: certificates.CertificateSigningRequest) -> None:
        known = self._care.objects.known
        verdict = judge(request_of(obj), [_known(one) for one in known.values() if _is_ours(one)])
        instance = known.get(verdict.instance)
        if instance is None:
            return
        if not verdict.is_approved:
            self._tell_once(name, instance, verdict)
            return
        await approve(self._api, obj, verdict)
        self._waiting.pop(name, None)
        said = f"{obj.spec.signerName} for {instance.status.node}: {name}"
        self._care.tell(instance, "InstanceCertificateApproved", said)

    def _tell_once(self, name: str, instance: WindowsInstance, verdict: Verdict) -> None:
        if self._told.get(name) == verdict.problem:
            return
        self._told[name] = verdict.problem
        said = f"the request {name} is not approved: {verdict.problem}."
        self._care.tell(instance, "InstanceCertificateNotApproved", said, is_bad=True)


def _is_ours(instance: WindowsInstance) -> bool:
    return bool(instance.status.node) and not instance.is_leaving


def _known(instance: WindowsInstance) -> Known:
    status = instance.status
    addresses = frozenset(one for one in status.addresses if _is_ip(one))
    names = frozenset(status.addresses) - addresses
    return Known(instance.name, status.node, names, addresses, frozenset(status.tokens))


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

"""Approves certificates of instances; all other requests are ignored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import ip_address

from winpod.errors import WinpodError
from winpod.instances.cluster.csr_approval import (
    REQUESTS,
    CertificateVerdict,
    KnownInstance,
    approve_csr,
    csr_name,
    evaluate_csr,
    to_csr,
)
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.context import OperatorContext
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.models import certificates_v1 as certificates

_EVALUATE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class CsrApprover:
    """Pending requests wait here, and are evaluated again as instances change."""

    def __init__(self, api: ApiClient, context: OperatorContext) -> None:
        self._api = api
        self._context = context
        self._pending: dict[str, certificates.CertificateSigningRequest] = {}
        self._reported: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._reflector = Reflector(api, certificates.CertificateSigningRequest, REQUESTS, self)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._evaluate_all())

    async def on_list(self, objects: Sequence[certificates.CertificateSigningRequest]) -> None:
        self._pending = {}
        for obj in objects:
            self.on_change(obj)

    def on_change(self, obj: certificates.CertificateSigningRequest) -> None:
        name = csr_name(obj)
        if obj.status and (obj.status.conditions or obj.status.certificate):
            self._pending.pop(name, None)
        else:
            self._pending[name] = obj
            self._changed.set()

    def on_delete(self, obj: certificates.CertificateSigningRequest) -> None:
        self._pending.pop(csr_name(obj), None)
        self._reported.pop(csr_name(obj), None)

    async def _evaluate_all(self) -> None:
        await self._context.objects.wait_synced()
        while True:
            try:
                async with asyncio.timeout(_EVALUATE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            for name, obj in list(self._pending.items()):
                try:
                    await self._evaluate(name, obj)
                except WinpodError as error:
                    _log.info("Failed to evaluate CSR %s, retrying: %s", name, error)

    async def _evaluate(self, name: str, obj: certificates.CertificateSigningRequest) -> None:
        known = self._context.objects.known
        verdict = evaluate_csr(
            to_csr(obj),
            [
                _to_known_instance(candidate)
                for candidate in known.values()
                if _is_joining(candidate)
            ],
        )
        instance = known.get(verdict.instance)
        if instance is None:
            return
        if not verdict.is_approved:
            self._report_once(name, instance, verdict)
            return
        await approve_csr(self._api, obj, verdict)
        self._pending.pop(name, None)
        message = f"{obj.spec.signerName} for {instance.status.node}: {name}"
        self._context.record_event(instance, "InstanceCertificateApproved", message)

    def _report_once(
        self, name: str, instance: WindowsInstance, verdict: CertificateVerdict
    ) -> None:
        if self._reported.get(name) == verdict.problem:
            return
        self._reported[name] = verdict.problem
        message = f"CSR {name} is not approved: {verdict.problem}."
        self._context.record_event(instance, "InstanceCertificateNotApproved", message, is_bad=True)


def _is_joining(instance: WindowsInstance) -> bool:
    return bool(instance.status.node) and not instance.is_deleting


def _to_known_instance(instance: WindowsInstance) -> KnownInstance:
    status = instance.status
    addresses = frozenset(address for address in status.addresses if _is_ip(address))
    names = frozenset(status.addresses) - addresses
    return KnownInstance(instance.name, status.node, names, addresses, frozenset(status.tokens))


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

"""Requests for certificates as the API server has them: read, and approved."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

from lightkube.models import certificates_v1 as certificates

from winpod.instances.cluster.signing import Request, Verdict
from winpod.node.api import ApiServer, Refused

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def request_of(obj: certificates.CertificateSigningRequest) -> Request:
    spec = obj.spec
    try:
        asks = base64.b64decode(spec.request)
    except binascii.Error:
        asks = b""
    return Request(
        spec.signerName,
        spec.username or "",
        frozenset(spec.groups or ()),
        frozenset(spec.usages or ()),
        asks,
    )


async def approve(
    api: ApiServer, obj: certificates.CertificateSigningRequest, verdict: Verdict
) -> None:
    obj.status = obj.status or certificates.CertificateSigningRequestStatus()
    obj.status.conditions = [_approval(verdict)]
    try:
        await api.replace(f"{REQUESTS}/{name_of(obj)}/approval", obj)
    except Refused as error:
        if not (error.is_conflict or error.is_missing):
            raise


def name_of(obj: certificates.CertificateSigningRequest) -> str:
    return (obj.metadata and obj.metadata.name) or ""


def _approval(verdict: Verdict) -> certificates.CertificateSigningRequestCondition:
    return certificates.CertificateSigningRequestCondition(
        type="Approved",
        status="True",
        reason="WinpodInstance",
        message=f"It is exactly that of the instance {verdict.instance}.",
        lastUpdateTime=datetime.now(UTC).replace(microsecond=0),
    )

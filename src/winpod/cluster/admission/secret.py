"""The webhook's certificates in a Secret that all replicas share; the API server trusts them.

Whoever finds them missing or about to end writes new ones. Of two who do so at once one is refused,
and reads what the other wrote.
"""

from __future__ import annotations

import base64
from collections.abc import Collection

from lightkube.core.dictmixin import DictMixin
from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.cluster.admission.certificates import Certificates, are_good, renew
from winpod.cluster.seen import MANAGED_BY, OURS
from winpod.node.api import ApiServer, Refused
from winpod.node.certificates import utc_now
from winpod.windows.errors import Unavailable

SECRET = "winpod-webhook"  # noqa: S105 - its name
_CONFIGURATION = "winpod"
"""The name of both configurations, which whoever installs the operator makes."""
_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
_TRIES = 5
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"


class _ClientConfig(DictMixin, rename="camel"):
    ca_bundle: str = ""


class _Webhook(DictMixin, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Configuration(DictMixin):
    webhooks: list[_Webhook] | None = None


async def shared_certificates(
    api: ApiServer, namespace: str, names: Collection[str]
) -> Certificates:
    """Those of the Secret, renewed first where that is due."""
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    for _ in range(_TRIES):
        secret = await api.get(v1.Secret, f"{secrets}/{SECRET}")
        found = _read(secret)
        if found and are_good(found, names, utc_now()):
            return found
        try:
            made = renew(found, names, utc_now())
            if secret is None:
                await api.create(secrets, _secret(made, namespace))
            else:
                secret.data = _encoded(made)
                await api.replace(f"{secrets}/{SECRET}", secret)
        except Refused as error:
            if not error.is_conflict:
                raise
        else:
            return made
    raise Unavailable(f"the Secret {SECRET} is written by others all the time.")


async def trust_authority(api: ApiServer, bundle: bytes) -> bool:
    """Tell it to the API server, in both configurations; whether both are there."""
    text = base64.b64encode(bundle).decode()
    for kind in ("mutating", "validating"):
        path = f"{_CONFIGURATIONS}/{kind}webhookconfigurations/{_CONFIGURATION}"
        found = await api.get(_Configuration, path)
        if found is None:
            return False
        untold = [one.name for one in found.webhooks or () if one.client_config.ca_bundle != text]
        if untold:
            told = [{"name": name, "clientConfig": {"caBundle": text}} for name in untold]
            await api.patch(_Configuration, path, {"webhooks": told})
    return True


def _secret(made: Certificates, namespace: str) -> v1.Secret:
    return v1.Secret(
        metadata=ObjectMeta(name=SECRET, namespace=namespace, labels={MANAGED_BY: OURS}),
        type="kubernetes.io/tls",
        data=_encoded(made),
    )


def _encoded(made: Certificates) -> dict[str, str]:
    values = (made.bundle, made.authority_key, made.chain, made.key)
    return {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, values, strict=True)}


def _read(secret: v1.Secret | None) -> Certificates | None:
    data = (secret.data or {}) if secret else {}
    try:
        return Certificates(*(base64.b64decode(data[key], validate=True) for key in _KEYS))
    except (KeyError, ValueError):
        return None

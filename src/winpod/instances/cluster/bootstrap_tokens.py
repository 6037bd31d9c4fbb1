"""Bootstrap tokens: one per instance, short-lived, valid for that instance only.

The secret half exists in the operator's memory, in the cluster's token Secret and on the instance
only. A certificate request made with a token is approved for its instance only.
"""

from __future__ import annotations

import base64
import secrets
import string
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from winpod.clock import Clock, format_timestamp, truncate_to_seconds, utc_now
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.labels import BOOTSTRAP_GROUP

NAMESPACE = "kube-system"
LIFETIME = timedelta(hours=2)
_MIN_REMAINING = timedelta(hours=1)
"""Tokens that expire sooner are not handed out: images may have to be pulled first."""
_LETTERS = string.ascii_lowercase + string.digits
_MAX_TOKENS = 4


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """`id` is the public half, which identifies the requester."""

    id: str
    secret: str = field(repr=False)
    expires: datetime

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"


def new_token(now: datetime) -> BootstrapToken:
    return BootstrapToken(_random_text(6), _random_text(16), truncate_to_seconds(now + LIFETIME))


def token_object(token: BootstrapToken, instance: str) -> v1.Secret:
    """Return the Secret in the API server's format, valid for bootstrap authentication only."""
    data = {
        "token-id": token.id,
        "token-secret": token.secret,
        "expiration": format_timestamp(token.expires),
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": BOOTSTRAP_GROUP,
        "description": f"winpod: the instance {instance}",
    }
    return v1.Secret(
        metadata=ObjectMeta(name=f"bootstrap-token-{token.id}", namespace=NAMESPACE),
        type="bootstrap.kubernetes.io/token",
        data={name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    )


def with_token(ids: list[str], token: str) -> list[str]:
    """Append the public half of a token, keeping the newest ones."""
    return [*(id_ for id_ in ids if id_ != token), token][-_MAX_TOKENS:]


class BootstrapTokens:
    def __init__(self, api: ApiClient, clock: Clock = utc_now) -> None:
        self._api = api
        self._clock = clock
        self._tokens: dict[str, BootstrapToken] = {}
        self._stored: set[str] = set()

    def get_or_create(self, instance: str) -> BootstrapToken:
        """Return the current token of an instance, or a new one if it expires soon."""
        now = self._clock()
        token = self._tokens.get(instance)
        if token is None or token.expires < now + _MIN_REMAINING:
            token = self._tokens[instance] = new_token(now)
        return token

    async def store(self, instance: str) -> None:
        """Create the token Secret. The caller must have recorded its owner before."""
        token = self._tokens[instance]
        if token.id in self._stored:
            return
        try:
            body = msgspec.to_builtins(token_object(token, instance))
            await self._api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
        except ApiError as error:
            if not error.is_conflict:
                raise
            del self._tokens[instance]
            raise
        self._stored.add(token.id)

    def delete(self, instance: str) -> None:
        if token := self._tokens.pop(instance, None):
            self._stored.discard(token.id)


def _random_text(count: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(count))

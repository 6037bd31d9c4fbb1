"""Tokens that an instance joins with: one each, for a short while, good for that instance alone.

A token's secret half is in the operator's memory, in the cluster's own store of tokens, and on the
instance; nowhere else. A request that is made with it is approved for its instance only.
"""

from __future__ import annotations

import base64
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.instances.cluster.signing import BOOTSTRAP_GROUP
from winpod.node.api import ApiServer, Refused
from winpod.node.certificates import utc_now

NAMESPACE = "kube-system"
LIFE = timedelta(hours=2)
_FRESH = timedelta(hours=1)
"""An instance is not given a token that ends sooner: images may have to be pulled first."""
_LETTERS = string.ascii_lowercase + string.digits
_KEPT = 4


@dataclass(frozen=True, slots=True)
class Token:
    """`id` is public, and who asks with the token is known by it."""

    id: str
    secret: str = field(repr=False)
    ends: datetime

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"


def new_token(now: datetime) -> Token:
    return Token(_letters(6), _letters(16), (now + LIFE).replace(microsecond=0))


def token_object(token: Token, instance: str) -> v1.Secret:
    """As the API server reads tokens; it takes it for nothing but joining."""
    data = {
        "token-id": token.id,
        "token-secret": token.secret,
        "expiration": token.ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": BOOTSTRAP_GROUP,
        "description": f"winpod: the instance {instance}",
    }
    return v1.Secret(
        metadata=ObjectMeta(name=f"bootstrap-token-{token.id}", namespace=NAMESPACE),
        type="bootstrap.kubernetes.io/token",
        data={name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    )


def with_token(known: list[str], token: str) -> list[str]:
    """The public halves of an instance's tokens, the newest last."""
    return [*(one for one in known if one != token), token][-_KEPT:]


class Tokens:
    def __init__(self, api: ApiServer, clock: Callable[[], datetime] = utc_now) -> None:
        self._api = api
        self._clock = clock
        self._given: dict[str, Token] = {}
        self._stored: set[str] = set()

    def of(self, instance: str) -> Token:
        """The one that it has, as long as that is good for a while; else another."""
        now = self._clock()
        token = self._given.get(instance)
        if token is None or token.ends < now + _FRESH:
            token = self._given[instance] = new_token(now)
        return token

    async def store(self, instance: str) -> None:
        """So that the cluster knows it; the caller has written down whose it is."""
        token = self._given[instance]
        if token.id in self._stored:
            return
        try:
            body = msgspec.to_builtins(token_object(token, instance))
            await self._api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
        except Refused as error:
            if not error.is_conflict:
                raise
            del self._given[instance]
            raise
        self._stored.add(token.id)

    def forget(self, instance: str) -> None:
        if token := self._given.pop(instance, None):
            self._stored.discard(token.id)


def _letters(count: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(count))

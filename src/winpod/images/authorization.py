"""Answers to a registry's challenge: HTTP Basic, or a Bearer token from the server it names.

A token is asked for once per scope and used until it expires or is refused. Credentials are looked
up only when a registry asks for them, by the name of the host that asks.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import aiohttp

from winpod.images.credentials import Credential
from winpod.images.errors import AccessDenied, RegistryUnavailable
from winpod.images.hosts import Host

DEFAULT_TOKEN_SECONDS = 60.0
TOKEN_LIMIT = 1 << 20
_PARAMETER = re.compile(r'([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')

Send = Callable[..., Awaitable[tuple[int, bytes]]]
"""Sends one request to a token server and gives the status and the body."""


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Known:
    header: str
    until: float


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """What `WWW-Authenticate` asks for, the stronger scheme first."""
    found = []
    for header in headers:
        scheme, _, rest = header.strip().partition(" ")
        pairs = _PARAMETER.findall(rest)
        parameters = {k.lower(): re.sub(r"\\(.)", r"\1", q) or plain for k, q, plain in pairs}
        found.append(Challenge(scheme.lower(), parameters))
    return sorted(found, key=lambda challenge: challenge.scheme != "bearer")


class Authorizer:
    """The authorization for one repository at each of its hosts."""

    def __init__(
        self,
        repository: str,
        find_credential: Callable[[Host], Awaitable[Credential | None]],
        send: Send,
    ) -> None:
        self._repository = repository
        self._find_credential = find_credential
        self._send = send
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = asyncio.Lock()

    def known(self, host: Host, actions: str) -> str:
        """The header that worked before, or nothing."""
        entry = self._known.get((host.origin, actions))
        return entry.header if entry and entry.until > _now() else ""

    async def answer(
        self, host: Host, actions: str, challenges: list[Challenge], refused: str
    ) -> str:
        """A header for a challenge; `refused` is the one the host has just turned down."""
        async with self._lock:
            if (known := self.known(host, actions)) and known != refused:
                return known
            challenge = next((c for c in challenges if c.scheme in ("bearer", "basic")), None)
            if challenge is None:
                raise AccessDenied(
                    f"{host.name} refused access and asks for no authorization that is known here."
                )
            credential = await self._find_credential(host)
            if challenge.scheme == "basic":
                entry = self._basic(host, credential, refused)
            else:
                entry = await self._bearer(host, actions, challenge, credential)
            self._known[host.origin, actions] = entry
            return entry.header

    def _basic(self, host: Host, credential: Credential | None, refused: str) -> _Known:
        if credential is None or not credential.username:
            raise AccessDenied(
                f"{host.name} wants a user name and password, and none is known for it.",
                f"Run `docker login {host.name}`, or name a pull secret.",
            )
        header = basic_header(credential)
        if header == refused:
            raise AccessDenied(
                f'{host.name} refused the credentials of user "{credential.username}".',
                f"Run `docker login {host.name}` again, or correct the pull secret.",
            )
        return _Known(header, float("inf"))

    async def _bearer(
        self, host: Host, actions: str, challenge: Challenge, credential: Credential | None
    ) -> _Known:
        realm = challenge.parameters.get("realm", "")
        if not realm.startswith(("http://", "https://")):
            raise AccessDenied(f'{host.name} names a token server "{realm}", which is no URL.')
        scopes = {f"repository:{self._repository}:{actions}"}
        scopes |= set(challenge.parameters.get("scope", "").split())
        service = challenge.parameters.get("service", "")
        if credential and credential.identity_token:
            status, body = await self._send(
                host,
                "POST",
                realm,
                data={
                    "grant_type": "refresh_token",
                    "client_id": "winpod",
                    "service": service,
                    "scope": " ".join(sorted(scopes)),
                    "refresh_token": credential.identity_token,
                },
            )
        else:
            query = [("service", service)] if service else []
            query += [("scope", scope) for scope in sorted(scopes)]
            headers = {}
            if credential:
                headers["Authorization"] = basic_header(credential)
                query.append(("account", credential.username))
            status, body = await self._send(host, "GET", realm, params=query, headers=headers)
        return _read_token(host, realm, status, body, credential)


def basic_header(credential: Credential) -> str:
    pair = f"{credential.username}:{credential.password}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _read_token(
    host: Host, realm: str, status: int, body: bytes, credential: Credential | None
) -> _Known:
    server = realm.partition("?")[0]
    if status in (400, 401, 403):
        who = "the credentials for" if credential else "an anonymous request for"
        raise AccessDenied(
            f"failed to authorize: the token server {server} refused {who} {host.name} ({status}).",
            f"Run `docker login {host.name}`, or name a pull secret that allows this.",
        )
    if status != 200:
        raise RegistryUnavailable(
            f"failed to authorize: unexpected status from the token server {server}: {status}."
        )
    try:
        answer = json.loads(body)
        token = answer.get("token") or answer.get("access_token")
        seconds = float(answer.get("expires_in") or DEFAULT_TOKEN_SECONDS)
    except (ValueError, AttributeError, TypeError, RecursionError):
        token, seconds = None, 0.0
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise RegistryUnavailable(
            f"failed to authorize: the token server {server} gave no token in its answer."
        )
    return _Known(f"Bearer {token}", _now() + max(seconds, DEFAULT_TOKEN_SECONDS) * 0.9)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def read_limited(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The body, or None where it is longer than the limit."""
    data = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > limit:
            return None
    return bytes(data)

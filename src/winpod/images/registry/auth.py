"""Registry authentication: credentials, and HTTP Basic or Bearer token authorization.

Credentials come from Docker's config file, its credential helpers and pull secrets, in order; the
first match wins. Keys match as in the kubelet: a host, where `*` matches within a label, with an
optional path prefix. Credentials are looked up only when a host sends a challenge. A token is
requested once per scope and reused until it expires or is rejected.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import fnmatch
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from winpod.errors import InvalidInput
from winpod.files import user_home
from winpod.images.errors import RegistryAccessDenied, RegistryUnavailable
from winpod.images.references import DOCKER_HUB
from winpod.images.registry.hosts import HUB_HOST, RegistryHost
from winpod.subprocesses import run

HELPER_SECONDS = 30.0
_HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", HUB_HOST})
_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Credential:
    """A user name and password, or an identity token. Excluded from repr."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


class CredentialSource(Protocol):
    async def find(self, registry: str, repository: str) -> Credential | None: ...


@dataclass(frozen=True, slots=True)
class Keyring:
    """Credentials by key, from one file or secret."""

    entries: tuple[tuple[str, Credential], ...]

    async def find(self, registry: str, repository: str) -> Credential | None:
        matches = [
            (len(path), "*" not in host, credential)
            for key, credential in self.entries
            for host, path in [_split_key(key)]
            if _host_matches(host, registry) and _path_matches(path, repository)
        ]
        return max(matches, key=lambda match: match[:2])[2] if matches else None


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """Docker's config.json: its entries and credential helpers."""

    path: Path
    keyring: Keyring
    helpers: Mapping[str, str]
    store: str

    async def find(self, registry: str, repository: str) -> Credential | None:
        return await self._ask_helper(registry) or await self.keyring.find(registry, repository)

    async def resolve(self, registries: Iterable[str]) -> ResolvedCredentials:
        """Return the credentials of these registries, asking the helpers now."""
        chosen = list(registries)
        entries, failures = [], {}
        for registry in chosen:
            try:
                if credential := await self._ask_helper(registry):
                    entries.append((registry, credential))
            except InvalidInput as error:
                failures[registry] = str(error)
        matching = [
            (key, credential)
            for key, credential in self.keyring.entries
            if any(_host_matches(_split_key(key)[0], registry) for registry in chosen)
        ]
        return ResolvedCredentials(Keyring(tuple(entries)), Keyring(tuple(matching)), failures)

    async def _ask_helper(self, registry: str) -> Credential | None:
        helper = self._helper(registry)
        key = _HUB_KEY if registry in _HUB_NAMES else registry
        return await _run_helper(helper, key, self.path) if helper else None

    def _helper(self, registry: str) -> str:
        for key, helper in self.helpers.items():
            if _host_matches(_split_key(key)[0], registry):
                return helper
        return self.store


@dataclass(frozen=True, slots=True)
class ResolvedCredentials:
    """A user's credentials of some registries, for a process that cannot run the user's helpers.

    A failure of a helper is raised only when its registry asks for a credential.
    """

    from_helpers: Keyring = Keyring(())
    keyring: Keyring = Keyring(())
    failures: Mapping[str, str] = field(default_factory=dict)

    async def find(self, registry: str, repository: str) -> Credential | None:
        if failure := self.failures.get(registry):
            raise InvalidInput(failure)
        return await find_credential((self.from_helpers, self.keyring), registry, repository)


async def find_credential(
    sources: Iterable[CredentialSource], registry: str, repository: str
) -> Credential | None:
    """Return the credential of the first source that has one."""
    for source in sources:
        if credential := await source.find(registry, repository):
            return credential
    return None


def read_docker_config() -> DockerConfig | None:
    """Read the user's config.json, or return None if there is none."""
    directory = os.environ.get("DOCKER_CONFIG")
    path = (Path(directory) if directory else user_home() / ".docker") / "config.json"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    config = _object(data, str(path))
    helpers, store = _get(config, "credHelpers", {}), _get(config, "credsStore", "")
    if not isinstance(helpers, dict) or not isinstance(store, str):
        raise InvalidInput(f'In {path}, "credHelpers" must be an object and "credsStore" text.')
    names = {str(key): str(value) for key, value in helpers.items()}
    return DockerConfig(path, _keyring(_get(config, "auths", {}), str(path)), names, store)


def read_pull_secret(secret: Mapping[str, Any]) -> Keyring:
    """Read the registry credentials of a Secret; one of another type has none."""
    name = f'Secret "{(secret.get("metadata") or {}).get("name", "")}"'
    kind = secret.get("type")
    if kind == "kubernetes.io/dockerconfigjson":
        config = _object(_secret_value(secret, ".dockerconfigjson", name), name)
        return _keyring(_get(config, "auths", {}), name)
    if kind == "kubernetes.io/dockercfg":
        return _keyring(_object(_secret_value(secret, ".dockercfg", name), name), name)
    return Keyring(())


def read_pull_secrets(secrets: Sequence[Mapping[str, Any]]) -> tuple[Keyring, ...]:
    return tuple(map(read_pull_secret, secrets))


def _secret_value(secret: Mapping[str, Any], key: str, name: str) -> bytes:
    plain, encoded = (
        values.get(key) if isinstance(values := secret.get(field), Mapping) else None
        for field in ("stringData", "data")
    )
    if isinstance(plain, str):
        return plain.encode(errors="replace")
    if not isinstance(encoded, str):
        raise InvalidInput(
            f'{name} is of type {secret.get("type")} and has no "{key}".',
            "Create it with `kubectl create secret docker-registry`.",
        )
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f'In {name}, data "{key}" is not base64.') from None


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} is JSON, but not an object.")
    return value


def _get(config: Mapping[str, Any], key: str, default: Any) -> Any:
    return default if config.get(key) is None else config[key]


def _keyring(auths: object, name: str) -> Keyring:
    if not isinstance(auths, dict):
        raise InvalidInput(f'In {name}, "auths" is not an object.')
    entries = [(key, _credential(value, key, name)) for key, value in auths.items()]
    return Keyring(tuple((key, credential) for key, credential in entries if credential))


def _credential(value: object, key: str, name: str) -> Credential | None:
    if not isinstance(value, dict):
        raise InvalidInput(f'In {name}, the entry "{key}" is not an object.')
    username, password = str(value.get("username") or ""), str(value.get("password") or "")
    if value.get("auth"):
        try:
            text = base64.b64decode(str(value["auth"])).decode()
        except (binascii.Error, ValueError):
            text = ""
        username, colon, password = text.rstrip("\0").partition(":")
        if not colon:
            raise InvalidInput(
                f'In {name}, "auth" of "{key}" is not base64 of USER:PASSWORD.',
                "`docker login` writes it.",
            )
    token = str(value.get("identitytoken") or "")
    if not username and not token:
        return None  # docker writes an empty entry if a helper has the credential
    return Credential(username, password, token)


def _split_key(key: str) -> tuple[str, str]:
    """Return host and path of keys such as `https://index.docker.io/v1/` or `host/team`."""
    host, _, path = re.sub(r"^https?://", "", key).partition("/")
    return host.lower(), re.sub(r"^v[12](?:/|$)", "", path).strip("/")


def _host_matches(pattern: str, registry: str) -> bool:
    registry = registry.lower()
    if registry in _HUB_NAMES:
        return pattern in _HUB_NAMES
    labels, patterns = registry.split("."), pattern.split(".")
    return len(labels) == len(patterns) and all(map(fnmatch.fnmatchcase, labels, patterns))


def _path_matches(path: str, repository: str) -> bool:
    return not path or f"{repository}/".startswith(f"{path}/")


async def _run_helper(helper: str, key: str, config: Path) -> Credential | None:
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[\w.-]+", helper):
        raise InvalidInput(f'{config} has a credential helper with the invalid name "{helper}".')
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            done = await run([program, "get"], stdin=key.encode(), is_interactive=True)
    except TimeoutError:
        raise InvalidInput(
            f"The credential helper {program} did not answer within {HELPER_SECONDS:.0f} s."
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"The credential helper {program} of {config} cannot be run: {error.strerror}.",
            f'Install it, or remove "{helper}" from the file.',
        ) from None
    if done.code:
        message = (done.output or done.errors).decode(errors="replace").strip()
        if message == _CREDENTIALS_NOT_FOUND:
            return None
        raise InvalidInput(f"The credential helper {program} failed for {key}: {message}.")
    answer = _object(done.output, f"The output of {program}")
    username, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if username == "<token>":
        return Credential(identity_token=secret)
    return Credential(username, secret) if username else None


_CREDENTIALS_NOT_FOUND = "credentials not found in native keychain"
"""Output of a helper without the credentials, defined by the protocol of docker's helpers."""

DEFAULT_TOKEN_SECONDS = 60.0
TOKEN_LIMIT = 1 << 20
_PARAMETER = re.compile(r'([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')

Send = Callable[..., Awaitable[tuple[int, bytes]]]
"""Sends one request to a token server and returns the status and body."""


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class _CachedHeader:
    header: str
    until: float


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Parse `WWW-Authenticate` headers, Bearer challenges first."""
    challenges = []
    for header in headers:
        scheme, _, rest = header.strip().partition(" ")
        pairs = _PARAMETER.findall(rest)
        parameters = {k.lower(): re.sub(r"\\(.)", r"\1", q) or plain for k, q, plain in pairs}
        challenges.append(Challenge(scheme.lower(), parameters))
    return sorted(challenges, key=lambda challenge: challenge.scheme != "bearer")


class Authorizer:
    """Authorization headers of one repository at each of its hosts."""

    def __init__(
        self,
        repository: str,
        find_credential: Callable[[RegistryHost], Awaitable[Credential | None]],
        send: Send,
    ) -> None:
        self._repository = repository
        self._find_credential = find_credential
        self._send = send
        self._cache: dict[tuple[str, str], _CachedHeader] = {}
        self._lock = asyncio.Lock()

    def cached_header(self, host: RegistryHost, actions: str) -> str:
        """Return the cached header, or an empty string."""
        entry = self._cache.get((host.origin, actions))
        return entry.header if entry and entry.until > _now() else ""

    async def authorize(
        self, host: RegistryHost, actions: str, challenges: list[Challenge], rejected: str
    ) -> str:
        """Return a header for a challenge; `rejected` is the header that the host just rejected."""
        async with self._lock:
            if (cached := self.cached_header(host, actions)) and cached != rejected:
                return cached
            challenge = next((c for c in challenges if c.scheme in ("bearer", "basic")), None)
            if challenge is None:
                raise RegistryAccessDenied(
                    f"{host.name} denied access without a Basic or Bearer challenge."
                )
            credential = await self._find_credential(host)
            if challenge.scheme == "basic":
                entry = self._basic(host, credential, rejected)
            else:
                entry = await self._bearer(host, actions, challenge, credential)
            self._cache[host.origin, actions] = entry
            return entry.header

    def _basic(
        self, host: RegistryHost, credential: Credential | None, rejected: str
    ) -> _CachedHeader:
        if credential is None or not credential.username:
            raise RegistryAccessDenied(
                f"{host.name} requires a user name and password, and none is configured.",
                f"Run `docker login {host.name}`, or use a pull secret.",
            )
        header = basic_header(credential)
        if header == rejected:
            raise RegistryAccessDenied(
                f'{host.name} rejected the credentials of user "{credential.username}".',
                f"Run `docker login {host.name}` again, or correct the pull secret.",
            )
        return _CachedHeader(header, float("inf"))

    async def _bearer(
        self, host: RegistryHost, actions: str, challenge: Challenge, credential: Credential | None
    ) -> _CachedHeader:
        realm = challenge.parameters.get("realm", "")
        if not realm.startswith(("http://", "https://")):
            raise RegistryAccessDenied(
                f'{host.name} requires a token from "{realm}", which is not a valid URL.'
            )
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
    host: RegistryHost, realm: str, status: int, body: bytes, credential: Credential | None
) -> _CachedHeader:
    server = realm.partition("?")[0]
    if status in (400, 401, 403):
        subject = "the credentials for" if credential else "an anonymous request for"
        raise RegistryAccessDenied(
            f"failed to authorize: the token server {server} rejected {subject} {host.name} "
            f"({status}).",
            f"Run `docker login {host.name}`, or use a pull secret that allows this.",
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
            f"failed to authorize: the token server {server} returned no token."
        )
    return _CachedHeader(f"Bearer {token}", _now() + max(seconds, DEFAULT_TOKEN_SECONDS) * 0.9)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def read_limited(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """Return the body, or None if it exceeds the limit."""
    data = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > limit:
            return None
    return bytes(data)

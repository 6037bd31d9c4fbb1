"""Registry client of the OCI distribution specification.

All requests go through `Repository.try_hosts`: it tries each host of the repository in the order of
hosts.toml, with retries after transient failures. An attempt uses `Repository.request`, which adds
the authorization, follows redirects and converts error responses.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from winpod import __version__
from winpod.concurrency import Backoff
from winpod.errors import InvalidInput, WinpodError
from winpod.images.errors import (
    CorruptContent,
    ImageNotFound,
    RegistryAccessDenied,
    RegistryUnavailable,
)
from winpod.images.manifests import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    INDEX_TYPES,
    MANIFEST_LIMIT,
    MANIFEST_TYPES,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    compute_digest,
    descriptor_of_digest,
    is_digest,
    verify_content,
)
from winpod.images.references import Reference
from winpod.images.registry.auth import (
    TOKEN_LIMIT,
    Authorizer,
    Credential,
    CredentialSource,
    find_credential,
    parse_challenges,
    read_limited,
)
from winpod.images.registry.hosts import (
    Capability,
    RegistryHost,
    hosts_directories,
    is_loopback,
    registry_hosts,
)

ATTEMPTS = 4
TIMEOUT_ATTEMPTS = 2
FIRST_WAIT = 0.25
MAX_WAIT = 20.0
MAX_REDIRECTS = 10
CONNECT_SECONDS = 10.0
ERROR_BODY_LIMIT = 1 << 16
READ_BUFFER = 1 << 19

ACCEPT = ", ".join((OCI_INDEX, DOCKER_INDEX, OCI_MANIFEST, DOCKER_MANIFEST))
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_TRY_NEXT_HOST = (ImageNotFound, RegistryAccessDenied, RegistryUnavailable, CorruptContent)
_RANDOM = random.SystemRandom()

_T = TypeVar("_T")
Body = Callable[[], bytes | AsyncIterator[bytes]]


class TransientError(Exception):
    """A failure that may not recur at the next attempt."""

    def __init__(self, error: WinpodError, *, wait: float = 0.0, attempts: int = ATTEMPTS) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
        self.attempts = attempts


class RegistryClient:
    """Connections to registries, with a cache of their hosts."""

    def __init__(
        self,
        *,
        roots: Sequence[Path] | None = None,
        answer_seconds: float = 30.0,
        first_wait: float = FIRST_WAIT,
        connections: int = 32,
    ) -> None:
        self._roots = hosts_directories() if roots is None else tuple(roots)
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(CONNECT_SECONDS, answer_seconds),
            sock_read=answer_seconds,
        )
        self._connections = connections
        self.first_wait = first_wait
        self._hosts: dict[str, tuple[RegistryHost, ...]] = {}
        self._contexts: dict[RegistryHost, ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None
        self.unreachable: dict[str, WinpodError] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=self._timeout,
            headers={"User-Agent": f"winpod/{__version__}", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session:
            await self._session.close()

    def repository(
        self, reference: Reference, credentials: Sequence[CredentialSource] = ()
    ) -> Repository:
        return Repository(self, reference.registry, reference.repository, credentials)

    def hosts(self, registry: str) -> tuple[RegistryHost, ...]:
        if registry not in self._hosts:
            self._hosts[registry] = registry_hosts(registry, self._roots)
        return self._hosts[registry]

    async def send(
        self,
        host: RegistryHost,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        params: Sequence[tuple[str, str]] = (),
        data: Any = None,
    ) -> aiohttp.ClientResponse:
        """Send one request, converting connection errors. The caller releases the response."""
        if self._session is None:
            raise RuntimeError("the registry client is used outside its `async with`")
        if host.scheme == "https" and host not in self._contexts:
            self._contexts[host] = host.ssl_context()
        try:
            return await self._session.request(
                method,
                URL(url, encoded=True).extend_query(params) if params else URL(url, encoded=True),
                headers=list(headers),
                data=data,
                allow_redirects=False,
                ssl=self._contexts.get(host, True),
                proxy=_proxy_for(url),
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _connection_error(url, error) from None


class Repository:
    """One repository, at every host that serves it."""

    def __init__(
        self,
        registry: RegistryClient,
        registry_name: str,
        name: str,
        credentials: Sequence[CredentialSource],
    ) -> None:
        self._registry = registry
        self._registry_name = registry_name
        self._name = name
        self._credentials = tuple(credentials)
        self._authorizer = Authorizer(name, self._credential_for, self._request_token)
        self.last_error: WinpodError | None = None

    async def resolve(self, reference: Reference) -> Descriptor:
        """Return the descriptor that a reference currently points to."""
        if reference.digest:
            return descriptor_of_digest(reference.digest)
        return await self.try_hosts(
            Capability.RESOLVE, lambda host: self._resolve_at(host, reference.tag)
        )

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return verified content in memory.

        It is a manifest if the descriptor has a manifest type or no type, otherwise a blob.
        """
        is_manifest = descriptor.media_type in ("", *INDEX_TYPES, *MANIFEST_TYPES)
        path = f"{'manifests' if is_manifest else 'blobs'}/{descriptor.digest}"

        async def read(host: RegistryHost) -> bytes:
            headers = {"Accept": ACCEPT} if is_manifest else {}
            async with self.request(host, "GET", path, headers=headers) as response:
                data = await _read_body(response, limit)
            verify_content(data, descriptor, host.name)
            return data

        return await self.try_hosts(Capability.PULL, read)

    async def try_hosts(
        self, capability: Capability, attempt: Callable[[RegistryHost], Awaitable[_T]]
    ) -> _T:
        """Return the result of the first host that succeeds, or raise the error of the last."""
        hosts = [
            h for h in self._registry.hosts(self._registry_name) if capability in h.capabilities
        ]
        failures: list[tuple[RegistryHost, WinpodError]] = []
        for host in hosts:
            try:
                return await self._retry(host, attempt)
            except _TRY_NEXT_HOST as error:
                failures.append((host, error))
        if not failures:
            raise InvalidInput(
                f"No host of {self._registry_name} in hosts.toml has the capability {capability}.",
                f'Add "{capability}" to the capabilities of one.',
            )
        *earlier, (_, last) = failures
        if earlier:
            others = "; ".join(f"{host.name}: {error.message}" for host, error in earlier)
            last = type(last)(last.message, f"{last.hint} Tried before: {others}".strip())
        raise last

    async def _retry(
        self, host: RegistryHost, attempt: Callable[[RegistryHost], Awaitable[_T]]
    ) -> _T:
        number, backoff = 0, Backoff(self._registry.first_wait, MAX_WAIT)
        while True:
            if unreachable := self._registry.unreachable.get(host.origin):
                raise unreachable
            try:
                return await attempt(host)
            except TransientError as failure:
                self.last_error = failure.error
                number += 1
                if number >= failure.attempts or failure.wait > MAX_WAIT:
                    if isinstance(failure, _HostUnreachable):
                        self._registry.unreachable[host.origin] = failure.error
                    raise failure.error from None
                await asyncio.sleep(max(failure.wait, backoff.next() * _RANDOM.uniform(0.5, 1.0)))

    @asynccontextmanager
    async def request(
        self,
        host: RegistryHost,
        method: str,
        path: str,
        *,
        actions: str = "pull",
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        accepted: frozenset[int] = frozenset({200}),
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield an accepted response. `path` is relative to the repository, or a full URL."""
        url = path if "://" in path else f"{host.origin}{host.path}/{self._name}/{path}"
        if "://" not in path and not host.serves(self._registry_name):
            url += f"?ns={self._registry_name}"
        cached = self._authorizer.cached_header(host, actions)
        response = await self._follow(host, method, url, headers or {}, body, cached)
        try:
            if response.status == 401:
                challenges = parse_challenges(response.headers.getall("WWW-Authenticate", []))
                response.release()
                header = await self._authorizer.authorize(host, actions, challenges, cached)
                response = await self._follow(host, method, url, headers or {}, body, header)
                if response.status == 401 and header.startswith("Basic "):
                    await self._authorizer.authorize(host, actions, challenges, header)
            if response.status not in accepted:
                raise await self._response_error(host, method, url, path, actions, response)
            try:
                yield response
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise TransientError(
                    RegistryUnavailable(
                        f"The response of {host.name} was interrupted: {_reason(error)}.",
                        "Try again, or check the network and proxies to the registry.",
                    ),
                    attempts=TIMEOUT_ATTEMPTS if isinstance(error, TimeoutError) else ATTEMPTS,
                ) from None
        finally:
            response.release()

    async def _follow(
        self,
        host: RegistryHost,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None,
        authorization: str,
    ) -> aiohttp.ClientResponse:
        """Send a request and follow redirects, without sending secrets to other hosts."""
        for _ in range(MAX_REDIRECTS + 1):
            sent = list(headers.items())
            if _origin(url) == host.origin:
                sent += host.headers
                sent += [("Authorization", authorization)] if authorization else []
            response = await self._registry.send(
                host, method, url, headers=sent, data=body() if body else None
            )
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECTS or not location:
                return response
            response.release()
            url = absolute_url(url, location, host)
        raise RegistryUnavailable(
            f"{host.name} redirected more than {MAX_REDIRECTS} times.",
            "Correct the configuration of the registry or its proxy.",
        )

    async def _response_error(
        self,
        host: RegistryHost,
        method: str,
        url: str,
        path: str,
        actions: str,
        response: aiohttp.ClientResponse,
    ) -> Exception:
        status = f"{response.status} {response.reason or ''}".strip()
        details = await _error_text(response)
        name = self._display_name(path)
        if response.status in (401, 403):
            tried, access = ("push", "push") if "push" in actions else ("resolve reference", "pull")
            return RegistryAccessDenied(
                f'failed to {tried} "{name}": {access} access denied, repository does not exist or '
                f"may require authorization ({host.name} returned {status}{details}).",
                f"Check the name, run `docker login {self._registry_name}`, or use a pull secret.",
            )
        if response.status == 404:
            return ImageNotFound(
                f'failed to resolve reference "{name}": not found at {host.name}{details}.',
                "Check the name and the tag.",
            )
        error = RegistryUnavailable(
            f"unexpected status from {method} request to {url.partition('?')[0]}: "
            f"{status}{details}.",
            "Wait, or log in for a higher limit." if response.status == 429 else "",
        )
        if response.status in _TRANSIENT_STATUSES:
            return TransientError(error, wait=_retry_after(response.headers.get("Retry-After", "")))
        return error

    def _display_name(self, path: str) -> str:
        kind, _, target = path.partition("/")
        version = "" if kind not in ("manifests", "blobs") or "://" in path else target
        separator = "@" if is_digest(version) else ":"
        return f"{self._registry_name}/{self._name}" + (f"{separator}{version}" if version else "")

    async def _resolve_at(self, host: RegistryHost, tag: str) -> Descriptor:
        path, headers = f"manifests/{tag}", {"Accept": ACCEPT}
        accepted = frozenset({200, 400, 405, 501})
        async with self.request(host, "HEAD", path, headers=headers, accepted=accepted) as response:
            digest = response.headers.get("Docker-Content-Digest", "")
            if response.status == 200 and is_digest(digest):
                return descriptor_of_digest(digest)
        async with self.request(host, "GET", path, headers=headers) as response:
            return descriptor_of_digest(compute_digest(await _read_body(response, MANIFEST_LIMIT)))

    async def _credential_for(self, host: RegistryHost) -> Credential | None:
        if host.serves(self._registry_name):
            return await find_credential(self._credentials, self._registry_name, self._name)
        return await find_credential(self._credentials, host.name, self._name)

    async def _request_token(
        self, host: RegistryHost, method: str, url: str, **request: Any
    ) -> tuple[int, bytes]:
        headers = request.pop("headers", {})
        response = await self._registry.send(host, method, url, headers=headers.items(), **request)
        try:
            if response.status in _TRANSIENT_STATUSES:
                raise TransientError(
                    RegistryUnavailable(
                        f"failed to authorize: the token server {url} returned {response.status}."
                    ),
                    wait=_retry_after(response.headers.get("Retry-After", "")),
                )
            return response.status, await read_limited(response, TOKEN_LIMIT) or b""
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _connection_error(url, error) from None
        finally:
            response.release()


class _HostUnreachable(TransientError):
    pass


def absolute_url(url: str, location: str, host: RegistryHost) -> str:
    """Resolve a Location header."""
    try:
        target = URL(url, encoded=True).join(URL(location, encoded=True))
    except ValueError:
        target = URL()
    if target.scheme not in ("http", "https") or not target.host:
        raise RegistryUnavailable(
            f'{host.name} redirects to "{location}", which is not a valid URL.'
        )
    return str(target)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def _read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    data = await read_limited(response, limit)
    if data is None:
        raise CorruptContent(
            f"{response.url.host} returned a document larger than the limit of {limit >> 20} MiB.",
            "Is this a container image?",
        )
    return data


def _connection_error(url: str, error: Exception) -> Exception:
    host = urlsplit(url).netloc
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return RegistryUnavailable(
            f"The certificate of {host} could not be verified: {_reason(error)}.",
            f"Configure its CA in certs.d/{host}/hosts.toml (ca = ...).",
        )
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return RegistryUnavailable(f'The URL "{url}" is invalid: {error}.')
    timed_out = isinstance(error, TimeoutError)
    reason = "it did not answer in time" if timed_out else _reason(error)
    return _HostUnreachable(
        RegistryUnavailable(
            f"The registry {host} cannot be reached: {reason}.",
            "Check the name and the network.",
        ),
        attempts=TIMEOUT_ATTEMPTS if timed_out else ATTEMPTS,
    )


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    text = str(getattr(inner, "strerror", None) or inner).strip(" .")
    return text or type(error).__name__


async def _error_text(response: aiohttp.ClientResponse) -> str:
    """Return the error messages in the response, as a suffix of a message."""
    try:
        body = await read_limited(response, ERROR_BODY_LIMIT)
        errors = json.loads(body or b"")["errors"]
        text = "; ".join(str(e.get("message") or e.get("code") or "") for e in errors)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    text = " ".join(text.split())[:300].rstrip(".")
    return f": {text}" if text else ""


def _retry_after(value: str) -> float:
    """Parse a Retry-After header, a number or a date, to seconds."""
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, TypeError):
        return 0.0


def _proxy_for(url: str) -> str | None:
    parts = urlsplit(url)
    if is_loopback(parts.netloc) or proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)

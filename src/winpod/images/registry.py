"""A client for registries, as the distribution specification describes them.

`Repository.on_hosts` is the core that everything goes through: it runs one attempt at each host
that may serve the repository, in the order of hosts.toml, again after a while where the failure
may pass, and at the next host where it does not. An attempt uses `Repository.request`, which adds
the authorization, follows redirects and turns a refusal into a sentence.
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
from winpod.images.authorization import TOKEN_LIMIT, Authorizer, parse_challenges, read_limited
from winpod.images.credentials import Credential, CredentialSource, find_credential
from winpod.images.errors import (
    AccessDenied,
    BadContent,
    ImageNotFound,
    RegistryUnavailable,
)
from winpod.images.hosts import Capability, Host, default_roots, hosts_of, is_loopback
from winpod.images.manifests import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    INDEX_TYPES,
    MANIFEST_LIMIT,
    MANIFEST_TYPES,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    digest_of,
    is_digest,
    pointer,
    verify,
)
from winpod.images.references import Reference
from winpod.windows.errors import InvalidInput, WinpodError

ATTEMPTS = 4
SILENT_ATTEMPTS = 2
FIRST_WAIT = 0.25
LONGEST_WAIT = 20.0
MAX_REDIRECTS = 10
CONNECT_SECONDS = 10.0
ERROR_BODY_LIMIT = 1 << 16
READ_BUFFER = 1 << 19

ACCEPT = ", ".join((OCI_INDEX, DOCKER_INDEX, OCI_MANIFEST, DOCKER_MANIFEST))
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_ELSEWHERE = (ImageNotFound, AccessDenied, RegistryUnavailable, BadContent)
_RANDOM = random.SystemRandom()

_T = TypeVar("_T")
Body = Callable[[], bytes | AsyncIterator[bytes]]


class Passing(Exception):
    """A failure that may be gone at the next attempt."""

    def __init__(self, error: WinpodError, *, wait: float = 0.0, attempts: int = ATTEMPTS) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
        self.attempts = attempts


class Registry:
    """Connections to registries, and what is known of their hosts."""

    def __init__(
        self,
        *,
        roots: Sequence[Path] | None = None,
        answer_seconds: float = 30.0,
        first_wait: float = FIRST_WAIT,
        connections: int = 32,
    ) -> None:
        self._roots = default_roots() if roots is None else tuple(roots)
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(CONNECT_SECONDS, answer_seconds),
            sock_read=answer_seconds,
        )
        self._connections = connections
        self.first_wait = first_wait
        self._hosts: dict[str, tuple[Host, ...]] = {}
        self._contexts: dict[Host, ssl.SSLContext] = {}
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

    def hosts(self, registry: str) -> tuple[Host, ...]:
        if registry not in self._hosts:
            self._hosts[registry] = hosts_of(registry, self._roots)
        return self._hosts[registry]

    async def send(
        self,
        host: Host,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        params: Sequence[tuple[str, str]] = (),
        data: Any = None,
    ) -> aiohttp.ClientResponse:
        """One request, with a failure to reach the host as a sentence. The caller releases it."""
        if self._session is None:
            raise RuntimeError("the registry client is used outside its `async with`")
        if host.scheme == "https" and host not in self._contexts:
            self._contexts[host] = host.tls()
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
            raise _not_reached(url, error) from None


class Repository:
    """One repository, at every host that serves it."""

    def __init__(
        self,
        registry: Registry,
        registry_name: str,
        name: str,
        credentials: Sequence[CredentialSource],
    ) -> None:
        self._registry = registry
        self._registry_name = registry_name
        self._name = name
        self._credentials = tuple(credentials)
        self._authorizer = Authorizer(name, self._credential_for, self._ask_token_server)
        self.trouble: WinpodError | None = None

    async def resolve(self, reference: Reference) -> Descriptor:
        """What a reference points to now."""
        if reference.digest:
            return pointer(reference.digest)
        return await self.on_hosts(
            Capability.RESOLVE, lambda host: self._resolve_at(host, reference.tag)
        )

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        """Verified content: a manifest where the descriptor says so or says nothing, else a blob.

        For documents; they are held in memory.
        """
        is_manifest = descriptor.media_type in ("", *INDEX_TYPES, *MANIFEST_TYPES)
        path = f"{'manifests' if is_manifest else 'blobs'}/{descriptor.digest}"

        async def read(host: Host) -> bytes:
            headers = {"Accept": ACCEPT} if is_manifest else {}
            async with self.request(host, "GET", path, headers=headers) as response:
                data = await _read_body(response, limit)
            verify(data, descriptor, host.name)
            return data

        return await self.on_hosts(Capability.PULL, read)

    async def on_hosts(
        self, capability: Capability, attempt: Callable[[Host], Awaitable[_T]]
    ) -> _T:
        """The result of the first host that gives one; else the failure of the last."""
        hosts = [
            h for h in self._registry.hosts(self._registry_name) if capability in h.capabilities
        ]
        failures: list[tuple[Host, WinpodError]] = []
        for host in hosts:
            try:
                return await self._persist(host, attempt)
            except _ELSEWHERE as error:
                failures.append((host, error))
        if not failures:
            raise InvalidInput(
                f"No host of {self._registry_name} in hosts.toml has the capability {capability}.",
                f'Add "{capability}" to the capabilities of one.',
            )
        *earlier, (_, last) = failures
        if earlier:
            others = "; ".join(f"{host.name}: {error.sentence}" for host, error in earlier)
            last = type(last)(last.sentence, f"{last.advice} Tried before it: {others}".strip())
        raise last

    async def _persist(self, host: Host, attempt: Callable[[Host], Awaitable[_T]]) -> _T:
        number = 0
        while True:
            if known := self._registry.unreachable.get(host.origin):
                raise known
            try:
                return await attempt(host)
            except Passing as passing:
                self.trouble = passing.error
                backoff = self._registry.first_wait * 2**number * _RANDOM.uniform(0.5, 1.0)
                number += 1
                if number >= passing.attempts or passing.wait > LONGEST_WAIT:
                    if isinstance(passing, _NotReached):
                        self._registry.unreachable[host.origin] = passing.error
                    raise passing.error from None
                await asyncio.sleep(max(passing.wait, min(backoff, LONGEST_WAIT)))

    @asynccontextmanager
    async def request(
        self,
        host: Host,
        method: str,
        path: str,
        *,
        actions: str = "pull",
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        accepted: frozenset[int] = frozenset({200}),
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An accepted response. `path` is below the repository, or a whole URL the host gave."""
        url = path if "://" in path else f"{host.origin}{host.path}/{self._name}/{path}"
        if "://" not in path and not host.serves(self._registry_name):
            url += f"?ns={self._registry_name}"
        known = self._authorizer.known(host, actions)
        response = await self._follow(host, method, url, headers or {}, body, known)
        try:
            if response.status == 401:
                challenges = parse_challenges(response.headers.getall("WWW-Authenticate", []))
                response.release()
                answer = await self._authorizer.answer(host, actions, challenges, known)
                response = await self._follow(host, method, url, headers or {}, body, answer)
                if response.status == 401 and answer.startswith("Basic "):
                    await self._authorizer.answer(host, actions, challenges, answer)
            if response.status not in accepted:
                raise await self._refusal(host, method, url, path, actions, response)
            try:
                yield response
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise Passing(
                    RegistryUnavailable(
                        f"The answer of {host.name} broke off: {_reason(error)}.",
                        "Try again, or look into the network between here and the registry.",
                    ),
                    attempts=SILENT_ATTEMPTS if isinstance(error, TimeoutError) else ATTEMPTS,
                ) from None
        finally:
            response.release()

    async def _follow(
        self,
        host: Host,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None,
        authorization: str,
    ) -> aiohttp.ClientResponse:
        """Send, and again where the answer points; secrets stay with the host they are for."""
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
            f"{host.name} redirects without end: more than {MAX_REDIRECTS} times.",
            "Correct the registry or the proxy before it.",
        )

    async def _refusal(
        self,
        host: Host,
        method: str,
        url: str,
        path: str,
        actions: str,
        response: aiohttp.ClientResponse,
    ) -> Exception:
        status = f"{response.status} {response.reason or ''}".strip()
        said = await _error_text(response)
        what = self._shown(path)
        if response.status in (401, 403):
            tried, access = ("push", "push") if "push" in actions else ("resolve reference", "pull")
            return AccessDenied(
                f'failed to {tried} "{what}": {access} access denied, repository does not exist or '
                f"may require authorization ({host.name} answered {status}{said}).",
                f"Check the name, run `docker login {self._registry_name}`, or name a pull secret.",
            )
        if response.status == 404:
            return ImageNotFound(
                f'failed to resolve reference "{what}": not found at {host.name}{said}.',
                "Check the name and the tag.",
            )
        error = RegistryUnavailable(
            f"unexpected status from {method} request to {url.partition('?')[0]}: {status}{said}.",
            "Wait, or log in for a higher limit." if response.status == 429 else "",
        )
        if response.status in _PASSING:
            return Passing(error, wait=_retry_after(response.headers.get("Retry-After", "")))
        return error

    def _shown(self, path: str) -> str:
        kind, _, target = path.partition("/")
        mark = "" if kind not in ("manifests", "blobs") or "://" in path else target
        separator = "@" if is_digest(mark) else ":"
        return f"{self._registry_name}/{self._name}" + (f"{separator}{mark}" if mark else "")

    async def _resolve_at(self, host: Host, tag: str) -> Descriptor:
        path, headers = f"manifests/{tag}", {"Accept": ACCEPT}
        accepted = frozenset({200, 400, 405, 501})
        async with self.request(host, "HEAD", path, headers=headers, accepted=accepted) as response:
            digest = response.headers.get("Docker-Content-Digest", "")
            if response.status == 200 and is_digest(digest):
                return pointer(digest)
        async with self.request(host, "GET", path, headers=headers) as response:
            return pointer(digest_of(await _read_body(response, MANIFEST_LIMIT)))

    async def _credential_for(self, host: Host) -> Credential | None:
        if host.serves(self._registry_name):
            return await find_credential(self._credentials, self._registry_name, self._name)
        return await find_credential(self._credentials, host.name, self._name)

    async def _ask_token_server(
        self, host: Host, method: str, url: str, **request: Any
    ) -> tuple[int, bytes]:
        headers = request.pop("headers", {})
        response = await self._registry.send(host, method, url, headers=headers.items(), **request)
        try:
            if response.status in _PASSING:
                raise Passing(
                    RegistryUnavailable(
                        f"failed to authorize: the token server {url} answered {response.status}."
                    ),
                    wait=_retry_after(response.headers.get("Retry-After", "")),
                )
            return response.status, await read_limited(response, TOKEN_LIMIT) or b""
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(url, error) from None
        finally:
            response.release()


class _NotReached(Passing):
    pass


def absolute_url(url: str, location: str, host: Host) -> str:
    """Where a Location header points."""
    try:
        target = URL(url, encoded=True).join(URL(location, encoded=True))
    except ValueError:
        target = URL()
    if target.scheme not in ("http", "https") or not target.host:
        raise RegistryUnavailable(f'{host.name} redirects to "{location}", which is no URL.')
    return str(target)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def _read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    data = await read_limited(response, limit)
    if data is None:
        raise BadContent(
            f"{response.url.host} gave more than {limit >> 20} MiB for a document that must be "
            "smaller.",
            "Is this a container image?",
        )
    return data


def _not_reached(url: str, error: Exception) -> Exception:
    host = urlsplit(url).netloc
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return RegistryUnavailable(
            f"The certificate of {host} was not accepted: {_reason(error)}.",
            f"Put its authority into certs.d/{host}/hosts.toml (ca = ...).",
        )
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return RegistryUnavailable(f'The URL "{url}" cannot be asked: {error}.')
    silent = isinstance(error, TimeoutError)
    found = "it did not answer in time" if silent else _reason(error)
    return _NotReached(
        RegistryUnavailable(
            f"The registry {host} cannot be reached: {found}.",
            "Check the name and the network.",
        ),
        attempts=SILENT_ATTEMPTS if silent else ATTEMPTS,
    )


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    text = str(getattr(inner, "strerror", None) or inner).strip(" .")
    return text or type(error).__name__


async def _error_text(response: aiohttp.ClientResponse) -> str:
    """What the registry says of its refusal, for the end of a sentence."""
    try:
        body = await read_limited(response, ERROR_BODY_LIMIT)
        errors = json.loads(body or b"")["errors"]
        said = "; ".join(str(e.get("message") or e.get("code") or "") for e in errors)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    said = " ".join(said.split())[:300].rstrip(".")
    return f": {said}" if said else ""


def _retry_after(value: str) -> float:
    """Seconds, from a number or a date."""
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

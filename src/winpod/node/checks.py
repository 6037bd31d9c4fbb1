"""Questions to a container: a command in it, or a connection to it. Probes and hooks ask them.

The sentences of failures are those that people know from their events.
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.node.health import Result
from winpod.windows.errors import InvalidInput

AGENT = "kube-probe/1.36"
_OUTPUT_LIMIT = 10 * 1024
_REDIRECTS = 10
_HEALTH = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


@dataclass(frozen=True, slots=True)
class Answer:
    """`warning` is of a success that is none quite; `status` is HTTP's, if an answer came."""

    result: Result
    output: str = ""
    warning: bool = False
    status: int = 0


GOOD = Answer(Result.SUCCESS)


def _bad(output: str) -> Answer:
    return Answer(Result.FAILURE, output)


class NoSuchPort(InvalidInput):
    def __init__(self, port: object) -> None:
        super().__init__(f"couldn't find port: {port}")


def port_of(port: int | str, container: v1.Container) -> int:
    """A port by its number, or by the name that the container gives it."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for known in container.ports or ():
        if known.name == port:
            return known.containerPort
    raise NoSuchPort(port)


class Checks:
    """Asks; one session for all."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def command(self, container_id: str, words: list[str], seconds: float) -> Answer:
        request = api.ExecSyncRequest(container_id=container_id, cmd=words, timeout=int(seconds))
        try:
            answer = await self._client.call("ExecSync", request)
        except RemoteError as error:
            if error.status is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return _bad(f'command timed out: "{" ".join(words)}" timed out after {seconds:g}s')
        said = (answer.stdout + answer.stderr)[:_OUTPUT_LIMIT].decode(errors="replace")
        return Answer(Result.FAILURE if answer.exit_code else Result.SUCCESS, said)

    async def http(
        self, action: v1.HTTPGetAction, container: v1.Container, ip: str, seconds: float
    ) -> Answer:
        url = _url(action, port_of(action.port, container), ip)
        headers = _headers(action, url)
        try:
            async with asyncio.timeout(seconds):
                return await self._get(url, headers)
        except TimeoutError:
            return _bad(f'Get "{url}": context deadline exceeded')
        except aiohttp.ClientConnectorError as error:
            return _bad(f'Get "{url}": dial tcp {urlsplit(url).netloc}: {_reason(error.os_error)}')
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _bad(f'Get "{url}": {error}')

    async def _get(self, url: str, headers: dict[str, str]) -> Answer:
        """Redirects are followed on the same host; one to another host is a success that warns."""
        session = self._opened()
        host = urlsplit(url).hostname
        for _ in range(_REDIRECTS):
            async with session.get(
                url, headers=headers, allow_redirects=False, ssl=False
            ) as answer:
                if not 200 <= answer.status < 400:
                    text = f"HTTP probe failed with statuscode: {answer.status}"
                    return Answer(Result.FAILURE, text, status=answer.status)
                if answer.status < 300:
                    return GOOD
                target = urljoin(url, answer.headers.get("Location", ""))
                if not answer.headers.get("Location") or urlsplit(target).hostname != host:
                    body = (await answer.content.read(_OUTPUT_LIMIT)).decode(errors="replace")
                    text = f"Probe terminated redirects, Response body: {body}"
                    return Answer(Result.SUCCESS, text, warning=True)
                url = target
        return _bad(f'Get "{url}": stopped after {_REDIRECTS} redirects')

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def tcp(
        self, action: v1.TCPSocketAction, container: v1.Container, ip: str, seconds: float
    ) -> Answer:
        host, port = action.host or ip, port_of(action.port, container)
        about = f"dial tcp {_joined(host, port)}"
        try:
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return _bad(f"{about}: i/o timeout")
        except OSError as error:
            return _bad(f"{about}: {_reason(error)}")
        writer.close()
        return GOOD

    async def grpc(self, action: v1.GRPCAction, ip: str, seconds: float) -> Answer:
        """Connecting is tried as long as there is time, as a kubelet tries it."""
        target, end = _joined(ip, action.port), time.monotonic() + seconds
        async with grpc.aio.insecure_channel(
            target, options=(("grpc.primary_user_agent", AGENT), ("grpc.enable_http_proxy", 0))
        ) as channel:
            try:
                async with asyncio.timeout(seconds):
                    await channel.channel_ready()
                told = await _ask_health(channel, action.service or "", end - time.monotonic())
            except TimeoutError:
                about = f'timeout: failed to connect service "{target}" within {seconds:g}s'
                return _bad(f"{about}: context deadline exceeded")
            except grpc.aio.AioRpcError as error:
                return _bad(_grpc_failure(seconds, error))
        return GOOD if told == "SERVING" else _bad(f'service unhealthy (responded with "{told}")')


async def _ask_health(channel: grpc.aio.Channel, service: str, seconds: float) -> str:
    """Request and answer have one field each, as the wrappers of protobuf have."""
    call: Any = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=Int32Value.FromString,
    )
    told = (await call(StringValue(value=service), timeout=seconds)).value
    return _HEALTH[told] if told in range(len(_HEALTH)) else str(told)


def _grpc_failure(seconds: float, error: grpc.aio.AioRpcError) -> str:
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return (
                "error: this server does not implement the grpc health protocol "
                f"(grpc.health.v1.Health): {error.details()}"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"timeout: health rpc did not complete within {seconds:g}s"
    return f"error: health rpc probe failed: {error.details()}"


def _url(action: v1.HTTPGetAction, port: int, ip: str) -> str:
    scheme = (action.scheme or "HTTP").lower()
    path = action.path or "/"
    slash = "" if path.startswith("/") else "/"
    return f"{scheme}://{_joined(action.host or ip, port)}{slash}{path}"


def _headers(action: v1.HTTPGetAction, url: str) -> dict[str, str]:
    own = {header.name: header.value for header in action.httpHeaders or ()}
    names = {name.lower() for name in own}
    added = {"User-Agent": AGENT, "Accept": "*/*", "Host": urlsplit(url).netloc}
    return {name: value for name, value in added.items() if name.lower() not in names} | own


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    known = {
        errno.ECONNREFUSED: "connect: connection refused",
        errno.EHOSTUNREACH: "connect: no route to host",
        errno.ENETUNREACH: "connect: network is unreachable",
    }
    return known.get(error.errno or 0, error.strerror or str(error))

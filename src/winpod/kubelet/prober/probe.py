"""Probe and hook actions: exec, HTTP, TCP and gRPC requests to a container.

Failure messages are the kubelet's, since they appear in events.
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

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.prober.results import ProbeResult
from winpod.kubelet.runtime_client import CALL_TIMEOUT, RuntimeClient

AGENT = "kube-probe/1.36"
_OUTPUT_LIMIT = 10 * 1024
_REDIRECTS = 10
_HEALTH_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Result of a probe.

    `warning` marks a success that is reported as a warning; `status` is the HTTP status, if any.
    """

    result: ProbeResult
    output: str = ""
    warning: bool = False
    status: int = 0


PROBE_SUCCESS = ProbeAnswer(ProbeResult.SUCCESS)


def _failure(output: str) -> ProbeAnswer:
    return ProbeAnswer(ProbeResult.FAILURE, output)


class NoSuchPort(InvalidInput):
    def __init__(self, port: object) -> None:
        super().__init__(f"couldn't find port: {port}")


def resolve_port(port: int | str, container: v1.Container) -> int:
    """Resolve a port number or the name of a container port."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for named in container.ports or ():
        if named.name == port:
            return named.containerPort
    raise NoSuchPort(port)


class Prober:
    """Runs probe actions, with one shared HTTP session."""

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def exec(self, container_id: str, command: list[str], seconds: float) -> ProbeAnswer:
        request = api.ExecSyncRequest(container_id=container_id, cmd=command, timeout=int(seconds))
        timeout = seconds + CALL_TIMEOUT if seconds else None
        try:
            answer = await self._runtime.call("ExecSync", request, timeout)
        except RemoteError as error:
            if error.status is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return _failure(
                f'command timed out: "{" ".join(command)}" timed out after {seconds:g}s'
            )
        output = (answer.stdout + answer.stderr)[:_OUTPUT_LIMIT].decode(errors="replace")
        return ProbeAnswer(ProbeResult.FAILURE if answer.exit_code else ProbeResult.SUCCESS, output)

    async def http(
        self, action: v1.HTTPGetAction, container: v1.Container, ip: str, seconds: float
    ) -> ProbeAnswer:
        url = _url(action, resolve_port(action.port, container), ip)
        headers = _headers(action, url)
        try:
            async with asyncio.timeout(seconds):
                return await self._get(url, headers)
        except TimeoutError:
            return _failure(f'Get "{url}": context deadline exceeded')
        except aiohttp.ClientConnectorError as error:
            return _failure(
                f'Get "{url}": dial tcp {urlsplit(url).netloc}: {_reason(error.os_error)}'
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _failure(f'Get "{url}": {error}')

    async def _get(self, url: str, headers: dict[str, str]) -> ProbeAnswer:
        """Get a URL. Redirects are followed on the same host; one to another host is a warning."""
        session = self._open_session()
        host = urlsplit(url).hostname
        for _ in range(_REDIRECTS):
            async with session.get(
                url, headers=headers, allow_redirects=False, ssl=False
            ) as answer:
                if not 200 <= answer.status < 400:
                    text = f"HTTP probe failed with statuscode: {answer.status}"
                    return ProbeAnswer(ProbeResult.FAILURE, text, status=answer.status)
                if answer.status < 300:
                    return PROBE_SUCCESS
                target = urljoin(url, answer.headers.get("Location", ""))
                if not answer.headers.get("Location") or urlsplit(target).hostname != host:
                    body = (await answer.content.read(_OUTPUT_LIMIT)).decode(errors="replace")
                    text = f"Probe terminated redirects, Response body: {body}"
                    return ProbeAnswer(ProbeResult.SUCCESS, text, warning=True)
                url = target
        return _failure(f'Get "{url}": stopped after {_REDIRECTS} redirects')

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def tcp(
        self, action: v1.TCPSocketAction, container: v1.Container, ip: str, seconds: float
    ) -> ProbeAnswer:
        host, port = action.host or ip, resolve_port(action.port, container)
        about = f"dial tcp {_join_host_port(host, port)}"
        try:
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return _failure(f"{about}: i/o timeout")
        except OSError as error:
            return _failure(f"{about}: {_reason(error)}")
        writer.close()
        return PROBE_SUCCESS

    async def grpc(self, action: v1.GRPCAction, ip: str, seconds: float) -> ProbeAnswer:
        """Call the gRPC health service, connecting until the timeout as the kubelet does."""
        target, end = _join_host_port(ip, action.port), time.monotonic() + seconds
        async with grpc.aio.insecure_channel(
            target, options=(("grpc.primary_user_agent", AGENT), ("grpc.enable_http_proxy", 0))
        ) as channel:
            try:
                async with asyncio.timeout(seconds):
                    await channel.channel_ready()
                status = await _check_health(channel, action.service or "", end - time.monotonic())
            except TimeoutError:
                about = f'timeout: failed to connect service "{target}" within {seconds:g}s'
                return _failure(f"{about}: context deadline exceeded")
            except grpc.aio.AioRpcError as error:
                return _failure(_grpc_failure(seconds, error))
        return (
            PROBE_SUCCESS
            if status == "SERVING"
            else _failure(f'service unhealthy (responded with "{status}")')
        )


async def _check_health(channel: grpc.aio.Channel, service: str, seconds: float) -> str:
    """Call Health/Check.

    Request and response have one field each, so protobuf's wrapper types can encode them.
    """
    call: Any = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=Int32Value.FromString,
    )
    status = (await call(StringValue(value=service), timeout=seconds)).value
    return _HEALTH_STATUSES[status] if status in range(len(_HEALTH_STATUSES)) else str(status)


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
    return f"{scheme}://{_join_host_port(action.host or ip, port)}{slash}{path}"


def _headers(action: v1.HTTPGetAction, url: str) -> dict[str, str]:
    own = {header.name: header.value for header in action.httpHeaders or ()}
    names = {name.lower() for name in own}
    added = {"User-Agent": AGENT, "Accept": "*/*", "Host": urlsplit(url).netloc}
    return {name: value for name, value in added.items() if name.lower() not in names} | own


def _join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    messages = {
        errno.ECONNREFUSED: "connect: connection refused",
        errno.EHOSTUNREACH: "connect: no route to host",
        errno.ENETUNREACH: "connect: network is unreachable",
    }
    return messages.get(error.errno or 0, error.strerror or str(error))

"""Probe actions against real servers on loopback."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from tests.support.known_objects import read
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.prober.probe import NoSuchPort, ProbeAnswer, Prober
from winpod.kubelet.prober.results import ProbeResult, ResultStreak
from winpod.kubelet.runtime_client import RuntimeClient

LOCAL = "127.0.0.1"


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    client = CriClient("unix:/nowhere")
    prober = Prober(RuntimeClient(client, KubeletMetrics()))
    yield prober
    await prober.close()
    await client.close()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def status(request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query.get("after", 0)))
        number = int(request.match_info["number"])
        headers = {"Location": request.query["to"]} if "to" in request.query else {}
        return web.Response(status=number, headers=headers)

    async def said(request: web.Request) -> web.Response:
        named = {name: request.headers.get(name) for name in ("Host", "User-Agent", "X-Own")}
        good = named == {"Host": "example.com", "User-Agent": "kube-probe/1.36", "X-Own": "1"}
        return web.Response(status=200 if good else 500)

    application = web.Application()
    application.router.add_get("/status/{number}", status)
    application.router.add_get("/said", said)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, LOCAL, 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def get(prober: Prober, port: int | str, path: str, **more: Any) -> ProbeAnswer:
    action = read(v1.HTTPGetAction, {"path": path, "port": port, **more})
    container = v1.Container(name="app", ports=[v1.ContainerPort(containerPort=80, name="web")])
    return await prober.http(action, container, LOCAL, 0.5 if "after" in path else 60)


@pytest.mark.parametrize(
    ("path", "result", "output"),
    [
        ("/status/200", ProbeResult.SUCCESS, ""),
        ("/status/204", ProbeResult.SUCCESS, ""),
        ("/status/302?to=/status/200", ProbeResult.SUCCESS, ""),
        (
            "/status/302?to=/status/500",
            ProbeResult.FAILURE,
            "HTTP probe failed with statuscode: 500",
        ),
        ("/status/302?to=http://example.com/", ProbeResult.SUCCESS, "Probe terminated redirects"),
        ("/status/404", ProbeResult.FAILURE, "HTTP probe failed with statuscode: 404"),
        ("/status/200?after=0.8", ProbeResult.FAILURE, "context deadline exceeded"),
        ("status/200", ProbeResult.SUCCESS, ""),
    ],
)
async def test_http_responses_determine_result(
    prober: Prober, port: int, path: str, result: ProbeResult, output: str
) -> None:
    answer = await get(prober, port, path)
    assert answer.result is result
    assert output in answer.output


async def test_http_probe_sends_configured_headers(prober: Prober, port: int) -> None:
    headers = [{"name": "Host", "value": "example.com"}, {"name": "X-Own", "value": "1"}]
    assert (await get(prober, port, "/said", httpHeaders=headers)).result is ProbeResult.SUCCESS


async def test_connection_failure_is_reported_with_reason(
    prober: Prober, unused_tcp_port: int
) -> None:
    at = f"{LOCAL}:{unused_tcp_port}"
    answer = await get(prober, unused_tcp_port, "/")
    assert answer.output == f'Get "http://{at}/": dial tcp {at}: connect: connection refused'
    action, container = v1.TCPSocketAction(port=unused_tcp_port), v1.Container(name="app")
    answer = await prober.tcp(action, container, LOCAL, 60)
    assert answer.output == f"dial tcp {at}: connect: connection refused"


async def test_tcp_probe_only_connects(prober: Prober, port: int) -> None:
    action, container = v1.TCPSocketAction(port=port), v1.Container(name="app")
    assert (await prober.tcp(action, container, LOCAL, 60)).result is ProbeResult.SUCCESS


async def test_unknown_port_name_is_an_error(prober: Prober) -> None:
    with pytest.raises(NoSuchPort):
        await get(prober, "metrics", "/")


@pytest.mark.parametrize(
    ("service", "result", "output"),
    [
        ("", ProbeResult.SUCCESS, ""),
        ("down", ProbeResult.FAILURE, 'service unhealthy (responded with "NOT_SERVING")'),
        ("unknown", ProbeResult.FAILURE, "error: health rpc probe failed: unknown"),
    ],
)
async def test_grpc_probe_checks_health_service(
    prober: Prober, service: str, result: ProbeResult, output: str
) -> None:
    async def check(request: StringValue, context: Any) -> Int32Value:
        if request.value == "unknown":
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown")
        return Int32Value(value=2 if request.value == "down" else 1)

    handler = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=StringValue.FromString,
        response_serializer=Int32Value.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),)
    )
    port = server.add_insecure_port(f"{LOCAL}:0")
    await server.start()
    try:
        answer = await prober.grpc(v1.GRPCAction(port=port, service=service), LOCAL, 60)
    finally:
        await server.stop(None)
    assert (answer.result, answer.output) == (result, output)


async def test_grpc_probe_retries_connection_until_timeout(prober: Prober) -> None:
    answer = await prober.grpc(v1.GRPCAction(port=1), LOCAL, 0.2)
    assert answer.output == (
        'timeout: failed to connect service "127.0.0.1:1" within 0.2s: context deadline exceeded'
    )


def test_result_takes_effect_at_threshold() -> None:
    run = ResultStreak()
    counted = []
    for answer in (
        ProbeResult.FAILURE,
        ProbeResult.FAILURE,
        ProbeResult.SUCCESS,
        ProbeResult.FAILURE,
    ) * 2:
        run = run.after(answer)
        counted.append(run.reaches_threshold(successes=1, failures=2))
    assert counted == [False, True, True, False, True, True, True, False]

"""Probes' questions to real servers on loopback."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from lightkube.models import core_v1 as v1

from tests.node.known_objects import read
from winpod.cri.rpc import Client
from winpod.node.checks import Answer, Checks, NoSuchPort
from winpod.node.health import Result, Run

LOCAL = "127.0.0.1"


@pytest.fixture
async def checks() -> AsyncIterator[Checks]:
    client = Client("unix:/nowhere")
    checks = Checks(client)
    yield checks
    await checks.close()
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


async def get(checks: Checks, port: int | str, path: str, **more: Any) -> Answer:
    action = read(v1.HTTPGetAction, {"path": path, "port": port, **more})
    container = v1.Container(name="app", ports=[v1.ContainerPort(containerPort=80, name="web")])
    return await checks.http(action, container, LOCAL, 0.5 if "after" in path else 60)


@pytest.mark.parametrize(
    ("path", "result", "words"),
    [
        ("/status/200", Result.SUCCESS, ""),
        ("/status/204", Result.SUCCESS, ""),
        ("/status/302?to=/status/200", Result.SUCCESS, ""),
        ("/status/302?to=/status/500", Result.FAILURE, "HTTP probe failed with statuscode: 500"),
        ("/status/302?to=http://example.com/", Result.SUCCESS, "Probe terminated redirects"),
        ("/status/404", Result.FAILURE, "HTTP probe failed with statuscode: 404"),
        ("/status/200?after=0.8", Result.FAILURE, "context deadline exceeded"),
        ("status/200", Result.SUCCESS, ""),
    ],
)
async def test_http_answers_are_judged(
    checks: Checks, port: int, path: str, result: Result, words: str
) -> None:
    answer = await get(checks, port, path)
    assert answer.result is result
    assert words in answer.output


async def test_headers_are_those_that_were_asked_for(checks: Checks, port: int) -> None:
    headers = [{"name": "Host", "value": "example.com"}, {"name": "X-Own", "value": "1"}]
    assert (await get(checks, port, "/said", httpHeaders=headers)).result is Result.SUCCESS


async def test_nobody_at_the_port_is_a_failure_with_its_reason(
    checks: Checks, unused_tcp_port: int
) -> None:
    at = f"{LOCAL}:{unused_tcp_port}"
    answer = await get(checks, unused_tcp_port, "/")
    assert answer.output == f'Get "http://{at}/": dial tcp {at}: connect: connection refused'
    action, container = v1.TCPSocketAction(port=unused_tcp_port), v1.Container(name="app")
    answer = await checks.tcp(action, container, LOCAL, 60)
    assert answer.output == f"dial tcp {at}: connect: connection refused"


async def test_tcp_asks_only_whether_somebody_listens(checks: Checks, port: int) -> None:
    action, container = v1.TCPSocketAction(port=port), v1.Container(name="app")
    assert (await checks.tcp(action, container, LOCAL, 60)).result is Result.SUCCESS


async def test_a_port_that_has_no_name_is_an_error(checks: Checks) -> None:
    with pytest.raises(NoSuchPort):
        await get(checks, "metrics", "/")


@pytest.mark.parametrize(
    ("service", "result", "words"),
    [
        ("", Result.SUCCESS, ""),
        ("down", Result.FAILURE, 'service unhealthy (responded with "NOT_SERVING")'),
        ("unknown", Result.FAILURE, "error: health rpc probe failed: unknown"),
    ],
)
async def test_grpc_services_are_asked_for_their_health(
    checks: Checks, service: str, result: Result, words: str
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
        answer = await checks.grpc(v1.GRPCAction(port=port, service=service), LOCAL, 60)
    finally:
        await server.stop(None)
    assert (answer.result, answer.output) == (result, words)


async def test_a_grpc_server_that_is_not_there_is_waited_for(checks: Checks) -> None:
    answer = await checks.grpc(v1.GRPCAction(port=1), LOCAL, 0.2)
    assert answer.output == (
        'timeout: failed to connect service "127.0.0.1:1" within 0.2s: context deadline exceeded'
    )


def test_a_run_of_answers_counts_when_it_is_long_enough() -> None:
    run = Run()
    counted = []
    for answer in (Result.FAILURE, Result.FAILURE, Result.SUCCESS, Result.FAILURE) * 2:
        run = run.after(answer)
        counted.append(run.counts(successes=1, failures=2))
    assert counted == [False, True, True, False, True, True, True, False]

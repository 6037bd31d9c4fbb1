"""Exec and attach over SPDY, driven by the stand-in client."""

import asyncio
import json
from typing import Any

import pytest

from tests.cri.streaming.local_backend import EXIT_WITH, LocalBackend
from tests.cri.streaming.stand_in_client import StandInClient, exec_client
from winpod.cri.streaming import StreamingServer, commands, spdy
from winpod.cri.streaming import spdy_frames as frames

V3 = "v3.channel.k8s.io"


def status_of(found: dict[int, bytes], ids: dict[str, int]) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(found[ids["error"]])
    return status


async def test_output_comes_apart_with_a_status(server: StreamingServer) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    url = server.exec_url("container", command, stdout=True, stderr=True)
    async with exec_client(url, "stdout", "stderr") as (client, ids):
        found = await client.collect()
    assert found[ids["stdout"]] == b"out\n"
    assert found[ids["stderr"]] == b"err\n"
    status = status_of(found, ids)
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


@pytest.mark.parametrize(
    ("code", "sent"), [(-1, "4294967295"), (300, "300"), (2**31, "2147483648")]
)
async def test_exit_codes_have_32_bits_and_no_sign(
    server: StreamingServer, code: int, sent: str
) -> None:
    url = server.exec_url("container", [EXIT_WITH, str(code)], stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        status = status_of(await client.collect(), ids)
    assert status["details"]["causes"][0]["message"] == sent
    assert status["message"].endswith(f"exit code {sent}")


async def test_success_is_told_as_json_since_version_4(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        assert status_of(await client.collect(), ids)["status"] == "Success"


async def test_before_version_4_only_failures_are_told_as_text(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stdout", protocol=V3) as (client, ids):
        assert (await client.collect())[ids["error"]] == b""
    url = server.exec_url("container", [EXIT_WITH, "5"], stdout=True)
    async with exec_client(url, "stdout", protocol="channel.k8s.io") as (client, ids):
        found = await client.collect()
    assert found[ids["error"]] == (
        b"command terminated with non-zero exit code:"
        b" error executing command [exit-with 5], exit code 5"
    )


async def test_a_failure_shows_no_details_of_the_runtime(
    server: StreamingServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.exec_url("container", ["fail"], stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        status = status_of(await client.collect(), ids)
    assert status["code"] == 500
    assert status["message"].endswith("the runtime failed; its log says how.")
    assert "a secret detail" in caplog.text


async def test_attach_tells_its_own_failures(server: StreamingServer) -> None:
    url = server.attach_url("elsewhere", stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        status = status_of(await client.collect(), ids)
    assert "error attaching to container: There is no container elsewhere." in status["message"]


async def test_a_terminal_is_resized(server: StreamingServer) -> None:
    command = ["sh", "-c", "until [ \"$(stty size)\" = '30 100' ]; do sleep 0.05; done; echo seen"]
    url = server.exec_url("container", command, stdout=True, tty=True)
    async with exec_client(url, "stdout", "resize") as (client, ids), asyncio.timeout(120):
        await client.write(ids["resize"], b'{"Width":100,"Height":30}')
        found = await client.collect()
    assert found[ids["stdout"]] == b"seen\r\n"


async def test_what_is_typed_reaches_the_terminal(server: StreamingServer) -> None:
    command = ["sh", "-c", "read word; echo got $word"]
    url = server.exec_url("container", command, stdin=True, stdout=True, tty=True)
    async with exec_client(url, "stdin", "stdout", "resize") as (client, ids):
        await client.write(ids["stdin"], b"typed\n")
        found = await client.collect()
    assert found[ids["stdout"]] == b"typed\r\ngot typed\r\n"


async def test_the_client_waits_with_streams_at_most_so_long(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "STREAMS_TIMEOUT", 0.2)
    url = server.exec_url("container", ["true"], stdout=True, stderr=True)
    async with exec_client(url, "stdout") as (client, _):
        assert await client.collect() == {}


async def test_streams_nobody_asked_for_are_reset(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stderr") as (client, ids):
        reset = await client.until(frames.RstStream)
        assert isinstance(reset, frames.RstStream)
        assert reset.stream_id == ids["stderr"]
        await client.open(streamtype="stdout")
        assert b"Success" in (await client.collect())[ids["error"]]


async def test_a_client_that_leaves_ends_its_process(
    server: StreamingServer, backend: LocalBackend
) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with exec_client(url, "stdout") as (client, _):
        await client.until(frames.Data)
    async with asyncio.timeout(120):
        await backend.ended_by_hangup.get()


async def test_closing_the_server_ends_its_sessions(
    server: StreamingServer, backend: LocalBackend
) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with exec_client(url, "stdout") as (client, _):
        await client.until(frames.Data)
        async with asyncio.timeout(120):
            await server.close()
            await backend.ended_by_hangup.get()


async def test_a_session_without_traffic_ends(backend: LocalBackend) -> None:
    server = StreamingServer(backend, idle_timeout=3.0)
    await server.start()
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with exec_client(url, "stdout") as (client, _), asyncio.timeout(120):
        await client.until(frames.Data)
        assert await client.collect() == {}
        await backend.ended_by_hangup.get()
    await server.close()


async def test_pings_are_answered(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with await StandInClient.connect(url) as client:
        await client.send(frames.ping(7), frames.ping(2), frames.ping(9))
        assert [await client.until(frames.Ping) for _ in range(2)] == [
            frames.Ping(7),
            frames.Ping(9),
        ]


async def test_bytes_that_are_not_spdy_end_the_connection_with_goaway(
    server: StreamingServer,
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with await StandInClient.connect(url) as client:
        await client.send(b"\xff" * 80)
        goaway = await client.until(frames.GoAway)
        assert isinstance(goaway, frames.GoAway)
        assert goaway.status == frames.Leaving.PROTOCOL_ERROR
        assert await client.reader.read() == b""


@pytest.mark.parametrize("stream_id", [2, 1])
async def test_a_stream_number_out_of_order_ends_the_connection(
    server: StreamingServer, stream_id: int
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with await StandInClient.connect(url) as client:
        await client.open(streamtype="error")
        await client.send(client.frames.syn_stream(stream_id, {}))
        goaway = await client.until(frames.GoAway)
        assert goaway == frames.GoAway(1, frames.Leaving.PROTOCOL_ERROR)


async def test_streams_are_refused_beyond_a_number(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with exec_client(url, "stdin") as (client, _):
        late = await client.open(streamtype="stdout")
        reset = await client.until(frames.RstStream)
        assert isinstance(reset, frames.RstStream)
        assert reset.stream_id == late


async def test_what_is_read_opens_the_windows_again(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with exec_client(url, "stdin") as (client, ids):
        await client.write(ids["stdin"], bytes(spdy.INITIAL_WINDOW))
        opened = [await client.until(frames.WindowUpdate) for _ in range(2)]
    assert {update.stream_id for update in opened if isinstance(update, frames.WindowUpdate)} == {
        0,
        ids["stdin"],
    }


async def test_a_client_that_keeps_windows_is_sent_no_more_than_they_allow(
    server: StreamingServer,
) -> None:
    url = server.exec_url("container", ["head", "-c", "5000", "/dev/zero"], stdout=True)
    async with await StandInClient.connect(url) as client:
        await client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 1000}))
        await client.open(streamtype="error")
        stdout = await client.open(streamtype="stdout")
        count = 0
        async for frame in client.received():
            if isinstance(frame, frames.Data) and frame.stream_id == stdout:
                assert len(frame.data) <= 1000
                count += len(frame.data)
                if count % 1000 == 0 and not frame.fin:
                    await client.send(frames.window_update(stdout, 1000))
            if isinstance(frame, frames.GoAway):
                break
        assert count == 5000


@pytest.mark.parametrize(
    "frame",
    [
        frames.window_update(0, frames.MAX_WINDOW),
        frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW + 1}),
    ],
)
async def test_windows_beyond_the_protocol_end_the_connection(
    server: StreamingServer, frame: bytes
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with await StandInClient.connect(url) as client:
        await client.send(frames.settings({4: 100}), frame)
        assert await client.until(frames.GoAway)


async def test_a_stream_window_beyond_the_protocol_resets_the_stream(
    server: StreamingServer,
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    async with exec_client(url, "stdin", "stdout") as (client, ids):
        await client.send(frames.window_update(ids["stdout"], frames.MAX_WINDOW))
        reset = await client.until(frames.RstStream)
        assert reset == frames.RstStream(ids["stdout"], frames.Reset.FLOW_CONTROL_ERROR)


async def test_output_a_client_took_back_fails_the_command(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    async with exec_client(url, "stdin", "stdout") as (client, ids):
        await client.send(frames.rst_stream(ids["stdout"], frames.Reset.CANCEL))
        await client.write(ids["stdin"], b"to nobody")
        status = status_of(await client.collect(), ids)
    assert "the client closed a stream" in status["message"]


async def test_a_client_is_probed_while_nobody_reads_it(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spdy, "PROBE_INTERVAL", 0.1)
    url = server.exec_url("container", ["sleep", "600"], stdin=True)
    async with exec_client(url, "stdin") as (client, ids):
        sending = asyncio.create_task(client.write(ids["stdin"], bytes(8 * 1024 * 1024)))
        assert await client.until(frames.Ping) == frames.Ping(2)
        sending.cancel()

"""Exec and attach over SPDY with a test client."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.streaming_backend import EXIT_WITH, LocalBackend
from tests.support.streaming_client import StandInClient, exec_client
from winpod.cri.streaming import StreamingServer, remote_command, spdy
from winpod.cri.streaming import spdy_frames as frames

V3 = "v3.channel.k8s.io"


def status_of(found: dict[int, bytes], ids: dict[str, int]) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(found[ids["error"]])
    return status


async def test_stdout_stderr_and_status_are_sent(server: StreamingServer) -> None:
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
async def test_exit_codes_are_unsigned_32_bit(
    server: StreamingServer, code: int, sent: str
) -> None:
    url = server.exec_url("container", [EXIT_WITH, str(code)], stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        status = status_of(await client.collect(), ids)
    assert status["details"]["causes"][0]["message"] == sent
    assert status["message"].endswith(f"exit code {sent}")


async def test_status_is_json_since_version_4(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        assert status_of(await client.collect(), ids)["status"] == "Success"


async def test_status_before_version_4_is_text_for_failures_only(server: StreamingServer) -> None:
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


async def test_internal_error_shows_no_details(
    server: StreamingServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.exec_url("container", ["fail"], stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        status = status_of(await client.collect(), ids)
    assert status["code"] == 500
    assert status["message"].endswith("internal error, see the runtime's log.")
    assert "a secret detail" in caplog.text


async def test_attach_failure_is_reported(server: StreamingServer) -> None:
    url = server.attach_url("elsewhere", stdout=True)
    async with exec_client(url, "stdout") as (client, ids):
        status = status_of(await client.collect(), ids)
    assert "error attaching to container: There is no container elsewhere." in status["message"]
    cause = {"reason": "NotFound", "message": "There is no container elsewhere."}
    assert status["details"]["causes"][1] == cause


async def test_terminal_is_resized(server: StreamingServer) -> None:
    command = ["sh", "-c", "until [ \"$(stty size)\" = '30 100' ]; do sleep 0.05; done; echo seen"]
    url = server.exec_url("container", command, stdout=True, tty=True)
    async with exec_client(url, "stdout", "resize") as (client, ids), asyncio.timeout(120):
        await client.write(ids["resize"], b'{"Width":100,"Height":30}')
        found = await client.collect()
    assert found[ids["stdout"]] == b"seen\r\n"


async def test_stdin_reaches_the_terminal(server: StreamingServer) -> None:
    command = ["sh", "-c", "read word; echo got $word"]
    url = server.exec_url("container", command, stdin=True, stdout=True, tty=True)
    async with exec_client(url, "stdin", "stdout", "resize") as (client, ids):
        await client.write(ids["stdin"], b"typed\n")
        found = await client.collect()
    assert found[ids["stdout"]] == b"typed\r\ngot typed\r\n"


async def test_missing_streams_time_out(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_command, "STREAMS_TIMEOUT", 0.2)
    url = server.exec_url("container", ["true"], stdout=True, stderr=True)
    async with exec_client(url, "stdout") as (client, _):
        assert await client.collect() == {}


async def test_unrequested_streams_are_reset(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stderr") as (client, ids):
        reset = await client.until(frames.RstStream)
        assert isinstance(reset, frames.RstStream)
        assert reset.stream_id == ids["stderr"]
        await client.open(streamtype="stdout")
        assert b"Success" in (await client.collect())[ids["error"]]


async def test_disconnect_ends_the_process(server: StreamingServer, backend: LocalBackend) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with exec_client(url, "stdout") as (client, _):
        await client.until(frames.Data)
    async with asyncio.timeout(120):
        await backend.ended_by_hangup.get()


async def test_server_close_ends_sessions(server: StreamingServer, backend: LocalBackend) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with exec_client(url, "stdout") as (client, _):
        await client.until(frames.Data)
        async with asyncio.timeout(120):
            await server.close()
            await backend.ended_by_hangup.get()


async def test_idle_session_ends(backend: LocalBackend) -> None:
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
        assert goaway.status == frames.GoAwayStatus.PROTOCOL_ERROR
        assert await client.reader.read() == b""


@pytest.mark.parametrize("stream_id", [2, 1])
async def test_stream_id_out_of_order_closes_the_connection(
    server: StreamingServer, stream_id: int
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with await StandInClient.connect(url) as client:
        await client.open(streamtype="error")
        await client.send(client.frames.syn_stream(stream_id, {}))
        goaway = await client.until(frames.GoAway)
        assert goaway == frames.GoAway(1, frames.GoAwayStatus.PROTOCOL_ERROR)


async def test_streams_above_the_limit_are_refused(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with exec_client(url, "stdin") as (client, _):
        late = await client.open(streamtype="stdout")
        reset = await client.until(frames.RstStream)
        assert isinstance(reset, frames.RstStream)
        assert reset.stream_id == late


async def test_reading_sends_window_updates(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with exec_client(url, "stdin") as (client, ids):
        await client.write(ids["stdin"], bytes(spdy.INITIAL_WINDOW))
        opened = [await client.until(frames.WindowUpdate) for _ in range(2)]
    assert {update.stream_id for update in opened if isinstance(update, frames.WindowUpdate)} == {
        0,
        ids["stdin"],
    }


async def test_client_windows_limit_output(
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
async def test_connection_window_overflow_closes_the_connection(
    server: StreamingServer, frame: bytes
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with await StandInClient.connect(url) as client:
        await client.send(frames.settings({4: 100}), frame)
        assert await client.until(frames.GoAway)


async def test_stream_window_overflow_resets_the_stream(
    server: StreamingServer,
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    async with exec_client(url, "stdin", "stdout") as (client, ids):
        await client.send(frames.window_update(ids["stdout"], frames.MAX_WINDOW))
        reset = await client.until(frames.RstStream)
        assert reset == frames.RstStream(ids["stdout"], frames.ResetStatus.FLOW_CONTROL_ERROR)


async def test_reset_of_stdout_fails_the_command(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    async with exec_client(url, "stdin", "stdout") as (client, ids):
        await client.send(frames.rst_stream(ids["stdout"], frames.ResetStatus.CANCEL))
        await client.write(ids["stdin"], b"to nobody")
        status = status_of(await client.collect(), ids)
    assert "the client closed a required stream" in status["message"]


async def test_unread_client_is_pinged(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spdy, "PROBE_INTERVAL", 0.1)
    url = server.exec_url("container", ["sleep", "600"], stdin=True)
    async with exec_client(url, "stdin") as (client, ids):
        sending = asyncio.create_task(client.write(ids["stdin"], bytes(8 * 1024 * 1024)))
        assert await client.until(frames.Ping) == frames.Ping(2)
        sending.cancel()

"""Exec over SPDY, driven by the stand-in client."""

import json

from tests.cri.streaming.stand_in_client import exec_client
from winpod.cri.streaming import StreamingServer


async def test_exec_gives_output_apart_and_a_status(server: StreamingServer) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    url = server.exec_url("container", command, stdout=True, stderr=True)
    async with exec_client(url, "stdout", "stderr") as (client, ids):
        found = await client.collect()
    assert found[ids["stdout"]] == b"out\n"
    assert found[ids["stderr"]] == b"err\n"
    status = json.loads(found[ids["error"]])
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]

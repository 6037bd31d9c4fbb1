"""Errors of the play daemon's API."""

from pathlib import Path

import pytest
from aiohttp import web

from winpod.config import Config
from winpod.play.client import PlayClient, PlayRequestFailed
from winpod.play.control_plane import ControlPlane
from winpod.play.server import PlayApi, play_directory, socket_path


async def test_error_is_returned_with_its_reason(tmp_path: Path) -> None:
    play_directory(tmp_path).mkdir()
    api = PlayApi(ControlPlane(tmp_path, Config(tmp_path)), emulation=False)
    runner = web.AppRunner(api.app())
    await runner.setup()
    client = PlayClient(tmp_path)
    try:
        await web.UnixSite(runner, str(socket_path(tmp_path))).start()
        with pytest.raises(PlayRequestFailed) as caught:
            await client.post("apply", {"publish": ["nonsense"]})
    finally:
        await client.close()
        await runner.cleanup()
    assert caught.value.reason == "InvalidInput"
    assert "nonsense" in caught.value.message

"""Connecting to the play daemon."""

from pathlib import Path

import pytest

from winpod.config import ComputeKind, Config, RuntimeSettings
from winpod.errors import Unavailable
from winpod.files import FileLock
from winpod.play import client


async def test_daemon_that_does_not_exit_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_EXIT_SECONDS", 0.1)
    (tmp_path / "play").mkdir()
    lock = FileLock.acquire(tmp_path / "play/lock")
    config = Config(root=tmp_path, runtime=RuntimeSettings(compute=ComputeKind.SIMULATED))
    try:
        with pytest.raises(Unavailable, match=r"did not exit in 0\.1 s\. See .*/play\.log"):
            async with client.connect_or_start(tmp_path, config):
                pass
    finally:
        lock.release()

"""A background process that does not start."""

from pathlib import Path

import pytest

from winpod.cri.daemonize import start_daemon
from winpod.errors import Unavailable


async def never(_: int) -> None:
    return None


async def test_error_of_the_process_is_raised(tmp_path: Path) -> None:
    log = tmp_path / "runtime.log"
    log.write_text("winpod: an earlier error.\n")
    with pytest.raises(Unavailable) as caught:
        await start_daemon(["runtime", "--host-build", "nonsense"], log, never)
    assert caught.value.reason == "InvalidInput"
    assert "nonsense" in caught.value.message
    assert f"winpod: {caught.value}\n" in log.read_text()


async def test_process_without_an_error_is_reported_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "runtime.log"
    with pytest.raises(Unavailable, match=r"did not start\. See .*runtime\.log"):
        await start_daemon(["--version"], log, never)

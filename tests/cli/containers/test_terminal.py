"""Exit codes of `winpod run` and `winpod exec`."""

import pytest
import typer

from winpod.cli.containers.terminal import docker_exit_codes
from winpod.compute.errors import ProgramStartFailed, WindowsError, program_start_reason
from winpod.cri.streaming.client import SessionFailed
from winpod.errors import NotFound, WinpodError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProgramStartFailed("The system cannot find the file specified."), 127),
        (ProgramStartFailed("The system cannot find the path specified."), 127),
        (ProgramStartFailed("Access is denied."), 126),
        (SessionFailed("x", reason=program_start_reason(2)), 127),
        (SessionFailed("x", reason=program_start_reason(5)), 126),
        (WindowsError(2, "The system cannot find the file specified."), 125),
        (NotFound("cannot find the file"), 125),
    ],
)
def test_exit_code_depends_on_the_reason(error: WinpodError, code: int) -> None:
    with pytest.raises(typer.Exit) as caught, docker_exit_codes():
        raise error
    assert caught.value.exit_code == code

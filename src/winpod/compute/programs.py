"""A container's programs, as its agent is told of them: its own, and those that come beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from winpod.compute.agent import Program, Size
from winpod.compute.plan import Plan
from winpod.windows.command_line import join


def program_of(plan: Plan) -> Program:
    return Program(
        plan.command_line,
        plan.cwd,
        dict(plan.env),
        terminal=Size() if plan.tty else None,
        stdin=plan.stdin,
        whole=True,
    )


def further_program(folder: Path, command: Sequence[str]) -> Program:
    """A program beside the container's own, which has told where and with what it runs."""
    own = Program.decode((folder / "start").read_bytes())
    return Program(join(command), own.directory, own.environment)

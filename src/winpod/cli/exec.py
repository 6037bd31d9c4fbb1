"""`winpod exec`: a further program in a container."""

from __future__ import annotations

import argparse
import os
from typing import Annotated

import typer

from winpod.cli.containers import (
    Clients,
    Namespace,
    Part,
    Target,
    find_container,
    require_running,
    with_runtimes,
)
from winpod.cli.foreground import failures_as_docker_tells_them, shell_code
from winpod.cli.options import Root
from winpod.cli.run_options import parse_variable
from winpod.cli.terminal import carry, check_terminal
from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming.client import SessionFailed, open_session
from winpod.windows.errors import InvalidInput

_FAILED = "error executing command in container: "


def command(
    target: Target,
    arguments: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run.")],
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pass input on to the program.")
    ] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it, and do not wait for it.")
    ] = False,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Set a variable.")
    ] = None,
    container: Part = "",
    namespace: Namespace = "",
    workdir: Annotated[str, typer.Option("--workdir", "-w", help="Working directory.")] = "",
    root: Root = None,
) -> None:
    """Run a further program in a container that runs.

    It has the container's user, variables and working directory; the exit code is the program's.
    """
    pairs = [parse_variable(text, os.environ) for text in env or ()]
    variables = {pair.key: pair.value.decode() for pair in pairs}
    given, arguments = split_options(arguments)
    container, namespace = given.container or container, given.namespace or namespace
    interactive, tty = given.stdin or interactive, given.tty or tty
    line = wrapped(arguments, variables, workdir, detach)

    async def execute(clients: Clients) -> int:
        found = await find_container(clients, target, container, namespace)
        require_running(found)
        request = api.ExecRequest(
            container_id=found.id,
            cmd=line,
            stdin=interactive and not detach,
            stdout=True,
            stderr=not tty,
            tty=tty and not detach,
        )
        url = (await found.client.call("Exec", request)).url
        async with open_session(url) as session:
            await carry(session, stdin=request.stdin, terminal=request.tty, detachable=False)
            try:
                return session.exit_code
            except SessionFailed as error:
                raise SessionFailed(f"{line[0]}: {str(error).removeprefix(_FAILED)}") from None

    with failures_as_docker_tells_them():
        if tty and not detach:
            check_terminal()
        code = with_runtimes(root, execute)
    raise typer.Exit(shell_code(code))


def split_options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options may stand between the pod and a `--`, which kubectl's users are used to."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-c", "--container", default="")
    parser.add_argument("-n", "--namespace", default="")
    parser.add_argument("-i", "--stdin", "--interactive", action="store_true")
    parser.add_argument("-t", "--tty", action="store_true")
    at = first = 0
    if "--" in arguments and arguments[0].startswith("-"):
        at = arguments.index("--")
        first = at + 1
    try:
        given, unknown = parser.parse_known_args(arguments[:at])
    except argparse.ArgumentError as error:
        raise InvalidInput(f"{error}.") from None
    if unknown:
        raise InvalidInput(f"{unknown[0]} is not an option of exec.", "See winpod exec --help.")
    return given, arguments[first:]


def wrapped(
    arguments: list[str], variables: dict[str, str], workdir: str, detach: bool
) -> list[str]:
    """The CRI has a command and no more: what else is asked for, cmd.exe does before it."""
    if not (variables or workdir or detach):
        return arguments
    for text in (*variables, *variables.values(), workdir, *arguments):
        _refuse_what_cmd_reads(text)
    line = ["cmd", "/c"]
    for name, value in variables.items():
        line += ["set", *_ended(f"{name}={value}")]
    if workdir:
        line += ["cd", "/d", workdir, "&&"]
    return [*line, *(("start", "", "/b") if detach else ()), *arguments]


def _ended(assignment: str) -> list[str]:
    """A space before the && would be part of a value that stands in no quotes."""
    return [assignment, "&&"] if " " in assignment else [f"{assignment}&&"]


def _refuse_what_cmd_reads(text: str) -> None:
    if '"' in text or (" " not in text and any(sign in text for sign in "&|<>^")):
        raise InvalidInput(
            f"{text} has a sign in it that cmd.exe would read, and -e, -w and -d need cmd.exe.",
            "Leave those options out, or put what is to run into a file of the container.",
        )

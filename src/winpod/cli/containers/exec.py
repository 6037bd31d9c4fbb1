"""`winpod exec`: execute a command in a running container."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Annotated

import typer

from winpod.cli.containers.run_options import parse_variable
from winpod.cli.containers.targets import (
    Clients,
    ContainerOption,
    Namespace,
    Target,
    find_container,
    require_running,
    run_with_runtimes,
)
from winpod.cli.containers.terminal import (
    attach_terminal,
    check_terminal,
    docker_exit_codes,
    to_shell_exit_code,
)
from winpod.cli.options import Root, with_options
from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming.client import SessionFailed, open_session
from winpod.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ExecOptions:
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pass stdin to the command.")
    ] = False
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Allocate a terminal.")] = False
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start the command and do not wait for it.")
    ] = False
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K=V", help="Set an environment variable."),
    ] = None
    container: ContainerOption = ""
    namespace: Namespace = ""
    workdir: Annotated[str, typer.Option("--workdir", "-w", help="Working directory.")] = ""


@with_options
def command(
    *,
    target: Target,
    arguments: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Command to execute.")
    ],
    options: ExecOptions,
    root: Root = None,
) -> None:
    """Execute a command in a running container.

    The command has the container's user, environment and working directory. The exit code is the
    command's.
    """
    pairs = [parse_variable(text, os.environ) for text in options.env or ()]
    variables = {pair.key: pair.value.decode() for pair in pairs}
    given, arguments = split_options(arguments)
    container, namespace = (
        given.container or options.container,
        given.namespace or options.namespace,
    )
    interactive, tty = given.stdin or options.interactive, given.tty or options.tty
    detach = options.detach
    line = wrap_command(arguments, variables, options.workdir, detach)

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
            await attach_terminal(
                session, stdin=request.stdin, terminal=request.tty, detachable=False
            )
            try:
                return session.exit_code
            except SessionFailed as error:
                raise SessionFailed(f"{line[0]}: {error}", reason=error.reason) from None

    with docker_exit_codes():
        if tty and not detach:
            check_terminal()
        code = run_with_runtimes(root, execute)
    raise typer.Exit(to_shell_exit_code(code))


def split_options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse options between the pod and `--`, as kubectl exec accepts them."""
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


def wrap_command(
    arguments: list[str], variables: dict[str, str], workdir: str, detach: bool
) -> list[str]:
    """Apply -e, -w and -d through cmd.exe: ExecRequest has no fields for them."""
    if not (variables or workdir or detach):
        return arguments
    for text in (*variables, *variables.values(), workdir, *arguments):
        _check_cmd_characters(text)
    line = ["cmd", "/c"]
    for name, value in variables.items():
        line += ["set", *_terminated(f"{name}={value}")]
    if workdir:
        line += ["cd", "/d", workdir, "&&"]
    return [*line, *(("start", "", "/b") if detach else ()), *arguments]


def _terminated(assignment: str) -> list[str]:
    """Append && to a `set`. Without quotes, a space before it would become part of the value."""
    return [assignment, "&&"] if " " in assignment else [f"{assignment}&&"]


def _check_cmd_characters(text: str) -> None:
    if '"' in text or (" " not in text and any(character in text for character in "&|<>^")):
        raise InvalidInput(
            f"{text} contains characters that cmd.exe interprets, and -e, -w and -d use cmd.exe.",
            "Leave those options out, or put the command into a script in the container.",
        )

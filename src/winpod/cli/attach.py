"""`winpod attach`: join the program of a container."""

from __future__ import annotations

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
from winpod.cli.foreground import in_foreground, shell_code
from winpod.cli.options import Root
from winpod.cli.terminal import check_terminal
from winpod.cri.labels import STDIO_ANNOTATION


def command(
    target: Target,
    container: Part = "",
    namespace: Namespace = "",
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Only look on.")] = False,
    root: Root = None,
) -> None:
    """Join the program of a container that runs.

    Its output from now on, your input, its exit code. Ctrl-C stops it as with `run`; with a
    terminal, Ctrl-P Ctrl-Q leaves it running.
    """

    async def attach(clients: Clients) -> int:
        found = await find_container(clients, target, container, namespace)
        require_running(found)
        has = found.container.annotations.get(STDIO_ANNOTATION, "").split()
        if "tty" in has and not no_stdin:
            check_terminal()
        return await in_foreground(
            found.client,
            found.id,
            stdin="stdin" in has and not no_stdin,
            terminal="tty" in has and not no_stdin,
        )

    raise typer.Exit(shell_code(with_runtimes(root, attach)))

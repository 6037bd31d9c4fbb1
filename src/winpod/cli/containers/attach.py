"""`winpod attach`: attach to the main process of a container."""

from __future__ import annotations

from typing import Annotated

import typer

from winpod.cli.containers.targets import (
    Clients,
    ContainerOption,
    Namespace,
    Target,
    find_container,
    require_running,
    run_with_runtimes,
)
from winpod.cli.containers.terminal import check_terminal, run_in_foreground, to_shell_exit_code
from winpod.cli.options import Root
from winpod.labels import STDIO_ANNOTATION


def command(
    target: Target,
    container: ContainerOption = "",
    namespace: Namespace = "",
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Do not attach stdin.")] = False,
    root: Root = None,
) -> None:
    """Attach to a running container.

    Streams the output from now on, forwards stdin and returns the exit code. Ctrl-C stops the
    container as with `run`; with a terminal, Ctrl-P Ctrl-Q detaches.
    """

    async def attach(clients: Clients) -> int:
        found = await find_container(clients, target, container, namespace)
        require_running(found)
        stdio = found.container.annotations.get(STDIO_ANNOTATION, "").split()
        if "tty" in stdio and not no_stdin:
            check_terminal()
        return await run_in_foreground(
            found.client,
            found.id,
            stdin="stdin" in stdio and not no_stdin,
            terminal="tty" in stdio and not no_stdin,
        )

    raise typer.Exit(to_shell_exit_code(run_with_runtimes(root, attach)))

"""`winpod run`: one Windows container, now, on this machine."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.containers import remove_pod
from winpod.cli.foreground import failures_as_docker_tells_them, in_foreground, shell_code
from winpod.cli.options import Root
from winpod.cli.run_guest import needs_emulation, tell_of_first_boot
from winpod.cli.run_image import Isolation, PullPolicy, handler_for, obtain_image
from winpod.cli.run_options import (
    check_address,
    check_hostname,
    check_name,
    describe_ports,
    describe_stdio,
    hostname_for,
    parse_annotation,
    parse_cpus,
    parse_env_file,
    parse_memory,
    parse_mount,
    parse_port,
    parse_variable,
)
from winpod.cli.run_ports import check_ports
from winpod.cli.terminal import check_terminal
from winpod.cri.config import Config, read_config
from winpod.cri.labels import PORTS_ANNOTATION, REMOVE_LABEL, RUN_LABEL, STDIO_ANNOTATION
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.cri.serving import Wanted, log_directory, runtime_of
from winpod.windows.builds import parse_build
from winpod.windows.errors import InvalidInput, WinpodError

_NAMESPACE = "winpod"
_CONTAINER = "app"


class NameTaken(WinpodError):
    code = "ALREADY_EXISTS"


@dataclass(frozen=True, slots=True)
class _Asked:
    image: str
    isolation: Isolation
    pull: PullPolicy
    detach: bool
    sandbox: api.PodSandboxConfig
    container: api.ContainerConfig


def command(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="A reference, or oci:DIR:NAME.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Instead of the image's own.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pass input on to the program.")
    ] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it in the background; print its id.")
    ] = False,
    remove: Annotated[bool, typer.Option("--rm", help="Remove it when it has ended.")] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="What to call it.")] = "",
    publish: Annotated[
        list[str] | None,
        typer.Option("--publish", "-p", metavar="8080:80", help="Lead a port to the container."),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option("--volume", "-v", metavar="SRC:C:\\DST[:ro]", help="Mount a path."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Set a variable.")
    ] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Set variables, one a line.")
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", "-m", metavar="SIZE", help="Memory limit, such as 512m.")
    ] = "",
    cpus: Annotated[str, typer.Option(metavar="N", help="How many processors: 2, or 0.5.")] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="ContainerUser, for one.")] = "",
    workdir: Annotated[str, typer.Option("--workdir", "-w", help="Working directory.")] = "",
    hostname: Annotated[
        str, typer.Option("--hostname", "-h", metavar="NAME", help="The computer's name.")
    ] = "",
    dns: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="A name server to ask.")
    ] = None,
    entrypoint: Annotated[
        str, typer.Option(metavar="PROGRAM", help="Instead of the image's own entrypoint.")
    ] = "",
    pull: Annotated[PullPolicy, typer.Option(help="When to pull the image.")] = PullPolicy.MISSING,
    isolation: Annotated[
        Isolation, typer.Option(help="What it shares with the machine.")
    ] = Isolation.PROCESS,
    host_build: Annotated[
        str, typer.Option("--host-build", metavar="BUILD", help="The Windows to be: 2022, 2019.")
    ] = "",
    annotation: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="For the pod and the container: io.microsoft..."),
    ] = None,
    root: Root = None,
) -> None:
    """Run a Windows container, with its output and its exit code.

    winpod run IMAGE cmd /c ver                 one command, and its output

    winpod run -it --rm IMAGE cmd               a prompt of Windows

    winpod run -d --name web -p 8080:80 IMAGE   a server; see ps, logs, exec, stop, rm

    It uses the runtime that is running, else it starts one in the background. The exit code is
    the program's (its lowest 8 bits); 125 if winpod failed, 127 if there is no such program.
    """
    name = check_name(name) if name else f"run-{secrets.token_hex(4)}"
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if host_build:
        config = replace(config, host_build=parse_build(host_build))
    with failures_as_docker_tells_them():
        if tty and not detach:
            check_terminal()
        variables = [pair for file in env_file or () for pair in _read_env_file(file)]
        variables += [parse_variable(text, os.environ) for text in env or ()]
        ports = [parse_port(text) for text in publish or ()]
        annotations = dict(parse_annotation(text) for text in annotation or ())
        count, maximum = parse_cpus(cpus, len(os.sched_getaffinity(0)))
        asked = _Asked(
            image,
            isolation,
            pull,
            detach,
            api.PodSandboxConfig(
                metadata=api.PodSandboxMetadata(name=name, namespace=_NAMESPACE, uid=name),
                hostname=check_hostname(hostname) if hostname else hostname_for(name),
                log_directory=str(log_directory(config.root) / name),
                dns_config=api.DNSConfig(servers=[check_address(text) for text in dns or ()]),
                port_mappings=ports,
                labels={RUN_LABEL: name, **({REMOVE_LABEL: "true"} if remove else {})},
                annotations=annotations
                | ({PORTS_ANNOTATION: describe_ports(ports)} if ports else {}),
            ),
            api.ContainerConfig(
                metadata=api.ContainerMetadata(name=_CONTAINER),
                command=[entrypoint] if entrypoint else (),
                args=arguments or (),
                envs=variables,
                mounts=[parse_mount(text) for text in volume or ()],
                working_dir=workdir,
                log_path=f"{_CONTAINER}.log",
                stdin=interactive,
                stdin_once=interactive and not detach,
                tty=tty,
                labels={RUN_LABEL: name},
                annotations=annotations | {STDIO_ANNOTATION: describe_stdio(interactive, tty)},
                windows=api.WindowsContainerConfig(
                    resources=api.WindowsContainerResources(
                        cpu_count=count,
                        cpu_maximum=maximum,
                        memory_limit_in_bytes=parse_memory(memory),
                    ),
                    security_context=api.WindowsContainerSecurityContext(run_as_username=user),
                ),
            ),
        )
        code = asyncio.run(_run(asked, config, bool(host_build)))
    raise typer.Exit(shell_code(code))


def _read_env_file(file: Path) -> list[api.KeyValue]:
    try:
        return parse_env_file(file.read_text("utf-8"), os.environ)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text.", "Write NAME=value, one a line.") from None


async def _run(asked: _Asked, config: Config, host_named: bool) -> int:
    emulation = needs_emulation(asked.isolation, config)
    wanted = Wanted(config.host_build, insist=host_named, emulation=emulation)
    async with runtime_of(config.root, wanted) as found:
        config = replace(config, host_build=found.serving.build)
        await check_ports(found.client, asked.sandbox.port_mappings)
        handler = await handler_for(asked.image, asked.isolation, asked.pull, config)
        image = await obtain_image(asked.image, handler, asked.pull, config)
        asked.container.image.image = image.id
        asked.container.image.user_specified_image = asked.image
        tell_of_first_boot(asked.isolation, config)
        return await _run_in(found.client, asked, handler.name)


async def _run_in(client: Client, asked: _Asked, handler: str) -> int:
    """A pod whose container was never started is removed, whatever went wrong."""
    sandbox = await _make_sandbox(client, asked.sandbox, handler)
    started = False
    try:
        request = api.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=asked.container, sandbox_config=asked.sandbox
        )
        container = (await client.call("CreateContainer", request)).container_id

        async def start() -> None:
            nonlocal started
            request = api.StartContainerRequest(container_id=container)
            await client.call("StartContainer", request)
            started = True

        if not asked.detach:
            stdin, terminal = asked.container.stdin, asked.container.tty
            return await in_foreground(
                client, container, stdin=stdin, terminal=terminal, start=start
            )
        await start()
        print(container)
        return 0
    finally:
        if not started:
            await asyncio.shield(remove_pod(client, sandbox))


async def _make_sandbox(client: Client, config: api.PodSandboxConfig, handler: str) -> str:
    request = api.RunPodSandboxRequest(config=config, runtime_handler=handler)
    try:
        return str((await client.call("RunPodSandbox", request)).pod_sandbox_id)
    except RemoteError as error:
        if error.status.name != NameTaken.code:
            raise
        name = config.metadata.name
        raise NameTaken(
            f'There is a container "{name}" already.',
            f"Remove it (winpod rm -f {name}), or give this one another --name.",
        ) from None

"""`winpod run`: run a Windows container on this machine.

Published ports are checked before the pod is created: the port mapping would accept a port that is
already in use, and connections would then reach either of the two.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.containers.run_image import (
    IsolationOption,
    PullPolicy,
    announce_first_boot,
    ensure_image,
    handler_for,
    needs_emulation,
)
from winpod.cli.containers.run_options import (
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
from winpod.cli.containers.targets import remove_pod
from winpod.cli.containers.terminal import (
    check_terminal,
    docker_exit_codes,
    run_in_foreground,
    to_shell_exit_code,
)
from winpod.cli.options import Root, with_options
from winpod.concurrency import run_to_completion
from winpod.config import Config, read_config
from winpod.cri.daemon import DaemonRequirements, connect_daemon, log_directory
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import InvalidInput, WinpodError
from winpod.labels import AUTO_REMOVE_LABEL, PORTS_ANNOTATION, RUN_LABEL, STDIO_ANNOTATION
from winpod.windows.builds import parse_build

_KINDS = {api.TCP: socket.SOCK_STREAM, api.UDP: socket.SOCK_DGRAM}


class PortInUse(WinpodError):
    code = "FAILED_PRECONDITION"


async def check_ports(client: CriClient, ports: Iterable[api.PortMapping]) -> None:
    ports = list(ports)
    if not ports:
        return
    ready = api.PodSandboxFilter(state=api.PodSandboxStateValue(state=api.SANDBOX_READY))
    listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest(filter=ready))
    ports_in_use = {
        mapping.partition("->")[0].rpartition(":")[2]
        + mapping[mapping.rindex("/") :]: pod.metadata.name
        for pod in listed.items
        for mapping in pod.annotations.get(PORTS_ANNOTATION, "").split(", ")
        if mapping
    }
    for port in ports:
        mapping = describe_ports([port])
        key = f"{port.host_port}{mapping[mapping.rindex('/') :]}"
        if owner := ports_in_use.get(key) or _other_listener(port):
            raise PortInUse(
                f"Host port {key} is already in use by {owner}.", "Publish another port."
            )


def _other_listener(port: api.PortMapping) -> str:
    """Return what else listens on the host port; empty if it is free."""
    kind = _KINDS.get(port.protocol)
    if kind is None:
        return ""
    family = socket.AF_INET6 if ":" in port.host_ip else socket.AF_INET
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.host_ip or "0.0.0.0", port.host_port))  # noqa: S104 - as the port mapping
        except OSError as error:
            return "another program" if error.errno == errno.EADDRINUSE else ""
    return ""


_NAMESPACE = "winpod"
_CONTAINER = "app"


class ContainerNameInUse(WinpodError):
    code = "ALREADY_EXISTS"


@dataclass(frozen=True, slots=True)
class RunMode:
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pass stdin to the container.")
    ] = False
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Allocate a terminal.")] = False
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Run in the background and print the container ID."),
    ] = False
    remove: Annotated[bool, typer.Option("--rm", help="Remove the container when it exits.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    name: Annotated[str, typer.Option(metavar="NAME", help="Container name.")] = ""
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish", "-p", metavar="8080:80", help="Publish a container port. May be repeated."
        ),
    ] = None
    volume: Annotated[
        list[str] | None,
        typer.Option(
            "--volume", "-v", metavar="SRC:C:\\DST[:ro]", help="Bind mount a path. May be repeated."
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", "-e", metavar="K=V", help="Set an environment variable. May be repeated."
        ),
    ] = None
    env_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Read environment variables from a file."),
    ] = None
    memory: Annotated[
        str,
        typer.Option("--memory", "-m", metavar="SIZE", help="Memory limit, such as 512m or 2Gi."),
    ] = ""
    cpus: Annotated[str, typer.Option(metavar="N", help="CPU limit, such as 2 or 0.5.")] = ""
    user: Annotated[
        str, typer.Option("--user", "-u", help="User to run as, such as ContainerUser.")
    ] = ""
    workdir: Annotated[
        str, typer.Option("--workdir", "-w", help="Working directory in the container.")
    ] = ""
    hostname: Annotated[
        str, typer.Option("--hostname", "-h", metavar="NAME", help="Container host name.")
    ] = ""
    dns: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="DNS server. May be repeated.")
    ] = None
    entrypoint: Annotated[
        str, typer.Option(metavar="PROGRAM", help="Entrypoint (default: the image's).")
    ] = ""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    pull: Annotated[PullPolicy, typer.Option(help="When to pull the image.")] = PullPolicy.MISSING
    isolation: Annotated[IsolationOption, typer.Option(help="Isolation mode.")] = (
        IsolationOption.PROCESS
    )
    host_build: Annotated[
        str,
        typer.Option(
            "--host-build", metavar="BUILD", help="Windows build to provide, such as 2022 or 2019."
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class _RunRequest:
    image: str
    options: ImageOptions
    detach: bool
    sandbox: api.PodSandboxConfig
    container: api.ContainerConfig


@with_options
def command(
    *,
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="Image reference, or oci:DIR:NAME.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...", help="Command and arguments (default: the image's)."
        ),
    ] = None,
    mode: RunMode,
    container: ContainerOptions,
    image_options: ImageOptions,
    annotation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V", help="Annotation of the pod and the container. May be repeated."
        ),
    ] = None,
    root: Root = None,
) -> None:
    """Run a Windows container.

    winpod run IMAGE cmd /c ver                 run a command and print its output

    winpod run -it --rm IMAGE cmd               open a Windows command prompt

    winpod run -d --name web -p 8080:80 IMAGE   run a server; see ps, logs, exec, stop, rm

    Uses the running runtime daemon, or starts one in the background. The exit code is the
    program's (lowest 8 bits); 125 if winpod failed, 127 if the program was not found.
    """
    name = check_name(container.name) if container.name else f"run-{secrets.token_hex(4)}"
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if image_options.host_build:
        config = replace(config, host_build=parse_build(image_options.host_build))
    with docker_exit_codes():
        if mode.tty and not mode.detach:
            check_terminal()
        annotations = dict(parse_annotation(text) for text in annotation or ())
        run_request = _RunRequest(
            image,
            image_options,
            mode.detach,
            _sandbox_config(name, mode, container, annotations, config.root),
            _container_config(name, mode, container, annotations, arguments or ()),
        )
        code = asyncio.run(_run(run_request, config))
    raise typer.Exit(to_shell_exit_code(code))


def _sandbox_config(
    name: str,
    mode: RunMode,
    options: ContainerOptions,
    annotations: Mapping[str, str],
    root: Path,
) -> api.PodSandboxConfig:
    ports = [parse_port(text) for text in options.publish or ()]
    return api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(name=name, namespace=_NAMESPACE, uid=name),
        hostname=check_hostname(options.hostname) if options.hostname else hostname_for(name),
        log_directory=str(log_directory(root) / name),
        dns_config=api.DNSConfig(servers=[check_address(text) for text in options.dns or ()]),
        port_mappings=ports,
        labels={RUN_LABEL: name, **({AUTO_REMOVE_LABEL: "true"} if mode.remove else {})},
        annotations={
            **annotations,
            **({PORTS_ANNOTATION: describe_ports(ports)} if ports else {}),
        },
    )


def _container_config(
    name: str,
    mode: RunMode,
    options: ContainerOptions,
    annotations: Mapping[str, str],
    arguments: Sequence[str],
) -> api.ContainerConfig:
    variables = [pair for file in options.env_file or () for pair in _read_env_file(file)]
    variables += [parse_variable(text, os.environ) for text in options.env or ()]
    count, maximum = parse_cpus(options.cpus, len(os.sched_getaffinity(0)))
    stdio = describe_stdio(mode.interactive, mode.tty)
    return api.ContainerConfig(
        metadata=api.ContainerMetadata(name=_CONTAINER),
        command=[options.entrypoint] if options.entrypoint else (),
        args=arguments,
        envs=variables,
        mounts=[parse_mount(text) for text in options.volume or ()],
        working_dir=options.workdir,
        log_path=f"{_CONTAINER}.log",
        stdin=mode.interactive,
        stdin_once=mode.interactive and not mode.detach,
        tty=mode.tty,
        labels={RUN_LABEL: name},
        annotations={**annotations, STDIO_ANNOTATION: stdio},
        windows=api.WindowsContainerConfig(
            resources=api.WindowsContainerResources(
                cpu_count=count,
                cpu_maximum=maximum,
                memory_limit_in_bytes=parse_memory(options.memory),
            ),
            security_context=api.WindowsContainerSecurityContext(run_as_username=options.user),
        ),
    )


def _read_env_file(file: Path) -> list[api.KeyValue]:
    try:
        return parse_env_file(file.read_text("utf-8"), os.environ)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text.", "Write one NAME=value per line.") from None


async def _run(run_request: _RunRequest, config: Config) -> int:
    reference, options = run_request.image, run_request.options
    requirements = DaemonRequirements(
        config.host_build,
        insist=bool(options.host_build),
        emulation=needs_emulation(options.isolation, config),
    )
    async with connect_daemon(config.root, requirements) as connection:
        config = replace(config, host_build=connection.info.build)
        await check_ports(connection.client, run_request.sandbox.port_mappings)
        handler = await handler_for(reference, options.isolation, options.pull, config)
        image = await ensure_image(reference, handler, options.pull, config)
        run_request.container.image.image = image.id
        run_request.container.image.user_specified_image = reference
        announce_first_boot(options.isolation, config)
        return await _run_in(connection.client, run_request, handler.name)


async def _run_in(client: CriClient, run_request: _RunRequest, handler: str) -> int:
    """Create and start the container; remove the pod if the container was not started."""
    sandbox = await _create_sandbox(client, run_request.sandbox, handler)
    started = False
    try:
        request = api.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=run_request.container, sandbox_config=run_request.sandbox
        )
        container = (await client.call("CreateContainer", request)).container_id

        async def start() -> None:
            nonlocal started
            request = api.StartContainerRequest(container_id=container)
            await client.call("StartContainer", request)
            started = True

        if not run_request.detach:
            stdin, terminal = run_request.container.stdin, run_request.container.tty
            return await run_in_foreground(
                client, container, stdin=stdin, terminal=terminal, start=start
            )
        await start()
        print(container)
        return 0
    finally:
        if not started:
            await run_to_completion(remove_pod(client, sandbox))


async def _create_sandbox(client: CriClient, config: api.PodSandboxConfig, handler: str) -> str:
    request = api.RunPodSandboxRequest(config=config, runtime_handler=handler)
    try:
        return str((await client.call("RunPodSandbox", request)).pod_sandbox_id)
    except RemoteError as error:
        if error.status.name != ContainerNameInUse.code:
            raise
        name = config.metadata.name
        raise ContainerNameInUse(
            f'The container name "{name}" is already in use.',
            f"Remove that container (winpod rm -f {name}), or choose another --name.",
        ) from None

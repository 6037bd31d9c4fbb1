"""`winpod instance`: Windows Server machines made into nodes, from a laptop."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli import instance_payload
from winpod.cli.instance_keys import NewKey, refuse_same, replace_key, trust
from winpod.cli.instance_options import (
    Address,
    AtOnce,
    Instances,
    Key,
    PayloadDirectory,
    Port,
    SettingsFile,
    User,
    Yes,
    read_asked,
    read_private_key,
)
from winpod.cli.instance_print import (
    print_failures,
    print_plans,
    print_states,
    print_words,
    telling,
)
from winpod.cli.instance_work import (
    Reached,
    change_all,
    plan_all,
    remove_dead_ones,
    take_off,
)
from winpod.cli.options import Format, Kubeconfig, Output
from winpod.cli.runtimeclass import read_settings_file
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.laptop.several import AT_ONCE
from winpod.instances.remote.gathering import QUESTION, gather
from winpod.instances.remote.login import PORT
from winpod.instances.remote.surveying import survey
from winpod.instances.software.blueprint import everything_of_ours
from winpod.instances.software.payload import read_payload
from winpod.windows.errors import InvalidInput, NotFound

app = typer.Typer(help="Make nodes of Windows Server machines, over SSH.")


@app.callback()
def _group() -> None:
    """Make nodes of Windows Server machines, over SSH."""


@app.command("plan")
def plan(
    key: Key,
    payload: PayloadDirectory,
    address: Address = "",
    user: User = "Administrator",
    port: Port = PORT,
    instances: Instances = None,
    kubeconfig: Kubeconfig = None,
    config: SettingsFile = None,
    at_once: AtOnce = AT_ONCE,
    output: Output = Format.TEXT,
) -> None:
    """Read instances, and print the steps that would make them nodes; nothing is changed.

    Exit code: 0 all of them were read, 1 one could not be, 2 bad input.
    """
    reached = _reached(address, user, port, instances, key, at_once)
    settings, files = _settings(config), read_payload(payload)
    outcomes = asyncio.run(plan_all(reached, kubeconfig, settings, files))
    print_plans(outcomes, output)
    raise typer.Exit(print_failures(outcomes))


@app.command("apply")
def apply(
    key: Key,
    payload: PayloadDirectory,
    address: Address = "",
    user: User = "Administrator",
    port: Port = PORT,
    instances: Instances = None,
    kubeconfig: Kubeconfig = None,
    config: SettingsFile = None,
    at_once: AtOnce = AT_ONCE,
    output: Output = Format.TEXT,
) -> None:
    """Make nodes of instances, and keep at it until each is ready; what is told goes to stderr.

    Those that are nodes already are cordoned and drained before pods are disturbed, as many at a
    time as the settings say. Stopped at any point, the same command goes on.

    Exit code: 0 all are ready, 1 one failed, 2 bad input.
    """
    reached = _reached(address, user, port, instances, key, at_once)
    settings, files = _settings(config), read_payload(payload)
    outcomes = asyncio.run(change_all(reached, kubeconfig, settings, files))
    print_states(outcomes, output)
    raise typer.Exit(print_failures(outcomes))


@app.command("status")
def status(
    key: Key,
    address: Address = "",
    user: User = "Administrator",
    port: Port = PORT,
    instances: Instances = None,
    at_once: AtOnce = AT_ONCE,
    output: Output = Format.TEXT,
) -> None:
    """Read instances, and print what runs on them.

    Exit code: 0 all of them were read, 1 one could not be, 2 bad input.
    """
    reached = _reached(address, user, port, instances, key, at_once)
    outcomes = asyncio.run(reached.each(lambda host: survey(host, QUESTION)))
    print_states(outcomes, output)
    raise typer.Exit(print_failures(outcomes))


@app.command("remove")
def remove(
    key: Key,
    address: Address = "",
    user: User = "Administrator",
    port: Port = PORT,
    instances: Instances = None,
    kubeconfig: Kubeconfig = None,
    keep_node: Annotated[
        bool, typer.Option("--keep-node", help="Ask no cluster: drain nothing, delete no Node.")
    ] = False,
    dead: Annotated[
        bool,
        typer.Option("--dead", help="They will never answer again: only delete their Nodes."),
    ] = False,
    config: SettingsFile = None,
    at_once: AtOnce = AT_ONCE,
    yes: Yes = False,
    output: Output = Format.TEXT,
) -> None:
    """Drain instances, take everything of ours off them, and delete their Nodes.

    Docker, and what else is not ours, stays.

    Exit code: 0 nothing of ours is left, 1 one failed, 2 bad input.
    """
    if keep_node and dead:
        raise InvalidInput("--keep-node and --dead leave nothing to be done.", "Give one of them.")
    reached = _reached(address, user, port, instances, key, at_once)
    settings = _settings(config)
    if not yes:
        _confirm(f"Remove {', '.join(asked.name for asked in reached.entries.asked)}")
    if dead:
        removed = asyncio.run(remove_dead_ones(reached, kubeconfig, settings))
        print_words(removed, output)
        raise typer.Exit(print_failures(removed))
    if keep_node:
        outcomes = asyncio.run(take_off(reached, everything_of_ours(settings)))
    else:
        outcomes = asyncio.run(change_all(reached, kubeconfig, settings, None))
    print_states(outcomes, output)
    raise typer.Exit(print_failures(outcomes))


@app.command("gather")
def gather_logs(
    key: Key,
    address: Address = "",
    user: User = "Administrator",
    port: Port = PORT,
    instances: Instances = None,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Where the archives go.")
    ] = Path(),
    at_once: AtOnce = AT_ONCE,
    output: Output = Format.TEXT,
) -> None:
    """Collect logs, events, configuration and state of instances, an archive for each.

    Keys and kubeconfigs are not in it, and what looks like a secret is left out of the rest.

    Exit code: 0 every instance has an archive, 1 one has none, 2 bad input.
    """
    reached = _reached(address, user, port, instances, key, at_once)
    if not directory.is_dir():
        raise NotFound(f"{directory} is no directory.", "Make it first.")
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    outcomes = asyncio.run(
        reached.each(
            lambda host: gather(
                host, directory / f"winpod-{host.name}-{when}.tar.gz", telling(host.name)
            )
        )
    )
    print_words(outcomes, output)
    raise typer.Exit(print_failures(outcomes))


@app.command("replace-key")
def replace(
    key: Key,
    new_key: NewKey,
    address: Address = "",
    user: User = "Administrator",
    port: Port = PORT,
    instances: Instances = None,
    at_once: AtOnce = AT_ONCE,
    output: Output = Format.TEXT,
) -> None:
    """Let another key open instances, and, once it has, not the old one any more.

    Exit code: 0 the new key opens all of them, 1 one failed, 2 bad input.
    """
    reached = _reached(address, user, port, instances, key, at_once)
    new = read_private_key(new_key, "--new-key")
    refuse_same(reached.key, new)
    outcomes = asyncio.run(reached.each(lambda host: replace_key(host, reached.key, new)))
    print_words(outcomes, output)
    raise typer.Exit(print_failures(outcomes))


app.command("trust")(trust)
app.command("payload")(instance_payload.payload)
app.command("fetch")(instance_payload.fetch)


def _reached(
    address: str, user: str, port: int, instances: Path | None, key: Path, at_once: int
) -> Reached:
    entries = read_asked(address, user, port, instances)
    return Reached(entries, read_private_key(key, "--key"), at_once)


def _settings(config: Path | None) -> InstanceSettings:
    return read_settings_file(config).instances


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput(f"{what}? Nobody is there to answer.", "Give --yes.")
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(1)

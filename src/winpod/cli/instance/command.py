"""`winpod instance`: turn Windows Server machines into nodes over SSH, without the operator."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import asyncssh
import typer
import yaml

from winpod.cli.instance import actions
from winpod.cli.instance.actions import (
    NewKey,
    SelectedInstances,
    abandon_all,
    change_all,
    plan_all,
    replace_key,
    require_different_keys,
    trust,
    uninstall_all,
)
from winpod.cli.instance.output import (
    print_failures,
    print_plans,
    print_results,
    print_states,
    progress_printer,
)
from winpod.cli.options import Format, Kubeconfig, Output, with_options
from winpod.cli.runtimeclass import read_settings_file
from winpod.errors import InvalidInput, NotFound
from winpod.instances.cluster.inventory import Inventory, read_inventory
from winpod.instances.software.desired_state import desired_removal
from winpod.instances.software.payload import read_payload
from winpod.instances.ssh.facts import collect_facts
from winpod.instances.ssh.log_collector import QUERY, collect_logs
from winpod.instances.ssh.login import PORT, read_key
from winpod.instances.standalone.parallel import DEFAULT_PARALLELISM
from winpod.labels import INSTANCES_CONFIG_MAP
from winpod.operator.instance_settings import InstanceSettings

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="Private key to log in with.")]
Parallelism = Annotated[
    int,
    typer.Option(
        "--at-once", metavar="NUMBER", min=1, help="Number of instances to process in parallel."
    ),
]
PayloadDirectory = Annotated[
    Path,
    typer.Option(
        "--payload", metavar="DIR", help="Payload to install; see `winpod instance payload`."
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file of the operator (networks, mirrors)."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclass(frozen=True, slots=True)
class InstanceSelection:
    address: Annotated[
        str,
        typer.Option("--address", metavar="ADDRESS", help="Address or host name of an instance."),
    ] = ""
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Administrator account to log in with.")
    ] = "Administrator"
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="SSH port.")] = PORT
    instances: Annotated[
        Path | None,
        typer.Option(
            "--instances",
            metavar="FILE",
            help=f"Instances: ConfigMap {INSTANCES_CONFIG_MAP}, or lines of "
            "`address: username=NAME`.",
        ),
    ] = None

    def read(self) -> Inventory:
        """Read the selected instances. Invalid entries of a file are reported per entry."""
        if bool(self.address) == bool(self.instances):
            raise InvalidInput("either --address or --instances is required.", "Give one of them.")
        if self.instances:
            return read_inventory(_entries(self.instances))
        found = read_inventory({self.address: f"username={self.user} port={self.port}"})
        if found.invalid:
            raise InvalidInput(found.invalid[0].problem)
        return found


@dataclass(frozen=True, slots=True)
class RemovalOptions:
    kubeconfig: Kubeconfig = None
    keep_node: Annotated[
        bool,
        typer.Option("--keep-node", help="Do not contact the cluster: no drain, keep the Nodes."),
    ] = False
    dead: Annotated[
        bool,
        typer.Option("--dead", help="The instances are gone: only delete their Nodes."),
    ] = False
    config: SettingsFile = None


def read_private_key(file: Path, option: str) -> asyncssh.SSHKey:
    return read_key(_read(file, option), str(file))


def _read(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{file} cannot be read: {error.strerror}.", f"Check {option}."
        ) from None


def _entries(file: Path) -> dict[str, str]:
    try:
        document: Any = yaml.safe_load(_read(file, "--instances"))
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file} is not YAML: {' '.join(str(error).split())}.") from None
    if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
        document = document.get("data") or {}
    if not isinstance(document, Mapping) or not document:
        raise InvalidInput(
            f"{file} contains no instances.",
            "Write lines such as: 10.1.2.3: username=Administrator",
        )
    return {str(key): str(value) for key, value in document.items()}


app = typer.Typer(help="Turn Windows Server machines into nodes over SSH.")


@app.callback()
def _group() -> None:
    """Turn Windows Server machines into nodes over SSH."""


@app.command("plan")
@with_options
def plan(
    *,
    key: Key,
    payload: PayloadDirectory,
    selection: InstanceSelection,
    kubeconfig: Kubeconfig = None,
    config: SettingsFile = None,
    at_once: Parallelism = DEFAULT_PARALLELISM,
    output: Output = Format.TEXT,
) -> None:
    """Print the steps that would turn instances into nodes; change nothing.

    Exit code: 0 all instances were read, 1 some could not be, 2 bad input.
    """
    selected = _select(selection, key, at_once)
    settings, files = _settings(config), read_payload(payload)
    results = asyncio.run(plan_all(selected, kubeconfig, settings, files))
    print_plans(results, output)
    raise typer.Exit(print_failures(results))


@app.command("apply")
@with_options
def apply(
    *,
    key: Key,
    payload: PayloadDirectory,
    selection: InstanceSelection,
    kubeconfig: Kubeconfig = None,
    config: SettingsFile = None,
    at_once: Parallelism = DEFAULT_PARALLELISM,
    output: Output = Format.TEXT,
) -> None:
    """Turn instances into nodes and wait until they are ready.

    Existing nodes are cordoned and drained before a change that disrupts pods, as many at a time
    as the settings allow. An interrupted run can be repeated. Progress is printed on stderr.

    Exit code: 0 all are ready, 1 some failed, 2 bad input.
    """
    selected = _select(selection, key, at_once)
    settings, files = _settings(config), read_payload(payload)
    results = asyncio.run(change_all(selected, kubeconfig, settings, files))
    print_states(results, output)
    raise typer.Exit(print_failures(results))


@app.command("status")
@with_options
def status(
    *,
    key: Key,
    selection: InstanceSelection,
    at_once: Parallelism = DEFAULT_PARALLELISM,
    output: Output = Format.TEXT,
) -> None:
    """Show the state of instances and their services.

    Exit code: 0 all instances were read, 1 some could not be, 2 bad input.
    """
    selected = _select(selection, key, at_once)
    results = asyncio.run(selected.run_on_each(lambda host: collect_facts(host, QUERY)))
    print_states(results, output)
    raise typer.Exit(print_failures(results))


@app.command("remove")
@with_options
def remove(
    *,
    key: Key,
    selection: InstanceSelection,
    options: RemovalOptions,
    at_once: Parallelism = DEFAULT_PARALLELISM,
    yes: Yes = False,
    output: Output = Format.TEXT,
) -> None:
    """Drain instances, uninstall everything winpod installed, and delete their Nodes.

    Docker and other software is kept.

    Exit code: 0 all are removed, 1 some failed, 2 bad input.
    """
    if options.keep_node and options.dead:
        raise InvalidInput("--keep-node and --dead are mutually exclusive.", "Give one of them.")
    selected = _select(selection, key, at_once)
    settings = _settings(options.config)
    if not yes:
        _confirm(f"Remove {', '.join(entry.name for entry in selected.entries.valid)}")
    if options.dead:
        removed = asyncio.run(abandon_all(selected, options.kubeconfig, settings))
        print_results(removed, output)
        raise typer.Exit(print_failures(removed))
    if options.keep_node:
        results = asyncio.run(uninstall_all(selected, desired_removal(settings)))
    else:
        results = asyncio.run(change_all(selected, options.kubeconfig, settings, None))
    print_states(results, output)
    raise typer.Exit(print_failures(results))


@app.command("gather")
@with_options
def gather_logs(
    *,
    key: Key,
    selection: InstanceSelection,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Directory for the archives.")
    ] = Path(),
    at_once: Parallelism = DEFAULT_PARALLELISM,
    output: Output = Format.TEXT,
) -> None:
    """Collect logs, events, configuration and state of instances into an archive each.

    Keys and kubeconfigs are excluded, and values that look like secrets are redacted.

    Exit code: 0 all are collected, 1 some failed, 2 bad input.
    """
    selected = _select(selection, key, at_once)
    if not directory.is_dir():
        raise NotFound(f"{directory} is not a directory.", "Create it first.")
    timestamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    results = asyncio.run(
        selected.run_on_each(
            lambda host: collect_logs(
                host,
                directory / f"winpod-{host.name}-{timestamp}.tar.gz",
                progress_printer(host.name),
            )
        )
    )
    print_results(results, output)
    raise typer.Exit(print_failures(results))


@app.command("replace-key")
@with_options
def replace(
    *,
    key: Key,
    new_key: NewKey,
    selection: InstanceSelection,
    at_once: Parallelism = DEFAULT_PARALLELISM,
    output: Output = Format.TEXT,
) -> None:
    """Replace the login key of instances; the old key is revoked once the new one works.

    Exit code: 0 all keys are replaced, 1 some failed, 2 bad input.
    """
    selected = _select(selection, key, at_once)
    new = read_private_key(new_key, "--new-key")
    require_different_keys(selected.key, new)
    results = asyncio.run(selected.run_on_each(lambda host: replace_key(host, selected.key, new)))
    print_results(results, output)
    raise typer.Exit(print_failures(results))


app.command("trust")(trust)
app.command("payload")(actions.payload)
app.command("fetch")(actions.fetch)


def _select(selection: InstanceSelection, key: Path, at_once: int) -> SelectedInstances:
    return SelectedInstances(selection.read(), read_private_key(key, "--key"), at_once)


def _settings(config: Path | None) -> InstanceSettings:
    return read_settings_file(config).instances


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"{what}? Cannot ask for confirmation: stdin is not a terminal.", "Give --yes."
        )
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(1)

"""Actions of `winpod instance`, run on each of the selected instances.

Also the subcommands `trust` and `replace-key`, for host keys and login keys, and `payload` and
`fetch`, for the files that are installed on instances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import asyncssh
import typer

from winpod.cli.instance.output import progress_printer
from winpod.cli.options import Root, kubeconfig_files
from winpod.config import read_config
from winpod.errors import InvalidInput, NotFound
from winpod.images.registry.auth import read_docker_config
from winpod.instances.cluster.inventory import Inventory, InventoryEntry
from winpod.instances.errors import LoginRefused
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.state import InstanceState
from winpod.instances.planner.steps import Step
from winpod.instances.software.payload import PAYLOAD_FILE, Payload, fetch_payload, make_payload
from winpod.instances.ssh import converge
from winpod.instances.ssh.authorized_keys import authorize_key, public_line, revoke_key
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.login import KnownHostsFile, SshLogin
from winpod.instances.ssh.remote_lock import remote_lock
from winpod.instances.standalone.cluster import StandaloneCluster, connect_cluster
from winpod.instances.standalone.parallel import InstanceResult, run_parallel
from winpod.instances.standalone.runner import (
    RolloutQueue,
    StandaloneGoal,
    StandaloneRunner,
    abandon_instance,
)
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.operator.instance_settings import InstanceSettings

Addresses = Annotated[
    list[str], typer.Argument(metavar="ADDRESS...", help="Instances that were reinstalled.")
]
NewKey = Annotated[Path, typer.Option("--new-key", metavar="FILE", help="New private key.")]


def trust(names: Addresses) -> None:
    """Forget the host keys of instances. The next key presented is trusted and pinned."""
    keys = KnownHostsFile()
    forgotten = {name: keys.forget(name.lower()) for name in names}
    for name in (name for name, key in forgotten.items() if key):
        print(f"{name}: host key removed")
    if unknown := [name for name, key in forgotten.items() if not key]:
        raise NotFound(
            f"{keys.file} has no host key of {', '.join(unknown)}.",
            "Give the address or name that winpod has connected to.",
        )


def require_different_keys(old: asyncssh.SSHKey, new: asyncssh.SSHKey) -> None:
    """Reject identical keys: removing the old one would then lock winpod out."""
    if public_line(old) == public_line(new):
        raise InvalidInput(
            "the new key is the same as the old one.", "Create another: ssh-keygen -N '' -f FILE"
        )


async def replace_key(host: SshHost, old: asyncssh.SSHKey, new: asyncssh.SSHKey) -> str:
    """Authorize the new key, and revoke the old one after a login with the new key."""
    async with host.with_key(new) as after:
        try:
            await after.connect()
        except LoginRefused:
            await authorize_key(host, public_line(new))
            await after.connect()
        was_revoked = await revoke_key(after, public_line(old))
    return "new key authorized" + (", old key revoked" if was_revoked else "")


def payload(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with the programs.")],
    version: Annotated[
        str,
        typer.Option("--version", metavar="VERSION", help="Version of the payload, such as 1.2.0."),
    ],
    containerd: Annotated[
        str,
        typer.Option(
            "--containerd",
            metavar="VERSION",
            help="Version of containerd.exe, if it cannot be detected.",
        ),
    ] = "",
) -> None:
    """Write the payload manifest of a directory: its programs and their SHA256.

    Nothing is downloaded: copy containerd, kubelet and the other programs there first.
    """
    _print(directory, make_payload(directory, version, containerd))


def fetch(
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE",
            help="Image reference, oci:DIR[:NAME] or oci-archive:FILE[:NAME].",
        ),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to extract to.")],
    root: Root = None,
) -> None:
    """Extract a payload image into a directory and verify it."""
    docker = read_docker_config()
    credentials = (docker,) if docker else ()
    store = root or read_config().root
    _print(directory, asyncio.run(fetch_payload(image, directory, store, credentials)))


def _print(directory: Path, payload: Payload) -> None:
    for name, file in sorted(payload.files.items()):
        print(f"{file.sha256}  {name}")
    print(f"{directory / PAYLOAD_FILE}: version {payload.version}, containerd {payload.containerd}")


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SelectedInstances:
    """The instances selected by a command, and the key to log in with."""

    entries: Inventory
    key: asyncssh.SSHKey
    at_once: int

    async def run_on_each(
        self, work: Callable[[SshHost], Awaitable[Result]]
    ) -> list[InstanceResult[Result]]:
        """Run `work` on all instances in parallel. Invalid entries count as failures."""
        keys = KnownHostsFile()

        async def run_one(entry: InventoryEntry) -> Result:
            login = SshLogin(entry.name, entry.address, entry.username, entry.port)
            async with SshHost(login, self.key, keys) as host:
                return await work(host)

        results = await run_parallel(
            self.entries.valid, lambda entry: entry.name, run_one, self.at_once
        )
        for bad in self.entries.invalid:
            results.append(InstanceResult(bad.key, failure=InvalidInput(bad.problem)))
        return results


async def plan_all(
    selected: SelectedInstances,
    kubeconfig: Path | None,
    settings: InstanceSettings,
    payload: Payload,
) -> list[InstanceResult[tuple[Step, ...]]]:
    async with _cluster(kubeconfig, settings) as cluster:
        goal = StandaloneGoal(cluster, settings, payload, RolloutQueue(settings.at_most))
        return await selected.run_on_each(
            lambda host: StandaloneRunner(host, goal, progress_printer(host.name)).plan()
        )


async def change_all(
    selected: SelectedInstances,
    kubeconfig: Path | None,
    settings: InstanceSettings,
    payload: Payload | None,
) -> list[InstanceResult[InstanceState]]:
    async with _cluster(kubeconfig, settings) as cluster:
        goal = StandaloneGoal(cluster, settings, payload, RolloutQueue(settings.at_most))
        return await selected.run_on_each(
            lambda host: StandaloneRunner(host, goal, progress_printer(host.name)).run()
        )


async def abandon_all(
    selected: SelectedInstances, kubeconfig: Path | None, settings: InstanceSettings
) -> list[InstanceResult[str]]:
    async with _cluster(kubeconfig, settings) as cluster:
        return await selected.run_on_each(lambda host: abandon_instance(host, cluster))


async def uninstall_all(
    selected: SelectedInstances, removal: DesiredState
) -> list[InstanceResult[InstanceState]]:
    async def one(host: SshHost) -> InstanceState:
        async with remote_lock(host):
            return await converge.remove(host, removal, progress_printer(host.name))

    return await selected.run_on_each(one)


def _cluster(
    kubeconfig: Path | None, settings: InstanceSettings
) -> AbstractAsyncContextManager[StandaloneCluster]:
    access = read_kubeconfig(*kubeconfig_files(kubeconfig))
    return connect_cluster(access, settings.api_server)

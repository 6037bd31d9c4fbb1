"""What `winpod instance` does, once its options are read: to all instances, each on its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import asyncssh

from winpod.cli.instance_print import telling
from winpod.cli.options import usual_kubeconfig
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.inputs import Asked, Entries
from winpod.instances.laptop.by_hand import ByHand, Queue, Wish
from winpod.instances.laptop.dead import remove_dead
from winpod.instances.laptop.hosting_cluster import Cluster, joined_cluster
from winpod.instances.laptop.several import Outcome, for_each
from winpod.instances.remote import applying
from winpod.instances.remote.holding import holding
from winpod.instances.remote.host_keys import KeysInFile
from winpod.instances.remote.login import Login
from winpod.instances.remote.ssh import Host
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.state import State
from winpod.instances.rules.steps import Step
from winpod.instances.software.payload import Payload
from winpod.node.access import read_kubeconfig
from winpod.windows.errors import InvalidInput

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Reached:
    """The instances that a command is about, and how they are opened."""

    entries: Entries
    key: asyncssh.SSHKey
    at_once: int

    async def each(self, work: Callable[[Host], Awaitable[R]]) -> list[Outcome[R]]:
        """Work on all of them; a bad entry is one of those that failed."""
        keys = KeysInFile()

        async def one(asked: Asked) -> R:
            login = Login(asked.name, asked.address, asked.username, asked.port)
            async with Host(login, self.key, keys) as host:
                return await work(host)

        done = await for_each(self.entries.asked, lambda asked: asked.name, one, self.at_once)
        for bad in self.entries.bad:
            done.append(Outcome(bad.key, failure=InvalidInput(bad.problem)))
        return done


async def plan_all(
    reached: Reached, kubeconfig: Path | None, settings: InstanceSettings, payload: Payload
) -> list[Outcome[tuple[Step, ...]]]:
    async with _cluster(kubeconfig, settings) as cluster:
        wish = Wish(cluster, settings, payload, Queue(settings.at_most))
        return await reached.each(lambda host: ByHand(host, wish, telling(host.name)).plan())


async def change_all(
    reached: Reached, kubeconfig: Path | None, settings: InstanceSettings, payload: Payload | None
) -> list[Outcome[State]]:
    async with _cluster(kubeconfig, settings) as cluster:
        wish = Wish(cluster, settings, payload, Queue(settings.at_most))
        return await reached.each(lambda host: ByHand(host, wish, telling(host.name)).run())


async def remove_dead_ones(
    reached: Reached, kubeconfig: Path | None, settings: InstanceSettings
) -> list[Outcome[str]]:
    async with _cluster(kubeconfig, settings) as cluster:
        return await reached.each(lambda host: remove_dead(host, cluster))


async def take_off(reached: Reached, ours: Desired) -> list[Outcome[State]]:
    async def one(host: Host) -> State:
        async with holding(host):
            return await applying.remove(host, ours, telling(host.name))

    return await reached.each(one)


def _cluster(
    kubeconfig: Path | None, settings: InstanceSettings
) -> AbstractAsyncContextManager[Cluster]:
    access = read_kubeconfig(kubeconfig or usual_kubeconfig())
    return joined_cluster(access, settings.api_server)

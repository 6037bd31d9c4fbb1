"""An instance opened: at the machine that was pinned, with the newest key that opens it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.errors import HostKeyChanged, LoginRefused
from winpod.instances.remote.keys import Keys, add_line, public_line, remove_line
from winpod.instances.remote.login import Login
from winpod.instances.remote.ssh import Host
from winpod.windows.errors import InvalidInput


class PinnedKey:
    """The host key of one instance; what is new is to be written into its status."""

    def __init__(self, key: str) -> None:
        self.key = key

    def known(self, instance: str) -> str | None:
        del instance
        return self.key or None

    def remember(self, instance: str, key: str) -> None:
        del instance
        self.key = key


@asynccontextmanager
async def reach(
    instance: WindowsInstance, keys: Keys, problem: str, pinned: PinnedKey
) -> AsyncIterator[Host]:
    """`problem` is why there is no key, where there is none."""
    if keys.now is None:
        raise InvalidInput(problem)
    spec = instance.spec
    login = Login(instance.name, spec.address, spec.username, spec.port)
    async with Host(login, keys.now, pinned) as host:
        try:
            await host.connect()
        except LoginRefused:
            if keys.old is None:
                raise
            async with Host(login, keys.old, pinned) as before:
                await add_line(before, public_line(keys.now))
            await host.connect()
        except HostKeyChanged as error:
            error.advice = _trust_again(instance)
            raise
        yield host


async def retire_key(
    host: Host, instance: WindowsInstance, keys: Keys, tell: Callable[[str, str], None]
) -> str:
    """The line of the key that it is reached with now; the one before it opens it no longer."""
    new = public_line(keys.now) if keys.now else ""
    old = instance.status.login_key
    if old and old != new and await remove_line(host, old):
        tell("InstanceKeyReplaced", "the new key opens it, and the old one no longer does")
    return new


def _trust_again(instance: WindowsInstance) -> str:
    where = f"-n {instance.metadata.namespace} windowsinstance {instance.name}"
    patch = '{"status":{"hostKey":""}}'
    return (
        "If the machine was made anew, trust it again: "
        f"kubectl patch {where} --subresource=status --type=merge -p '{patch}'"
    )

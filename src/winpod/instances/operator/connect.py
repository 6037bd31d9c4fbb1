"""Connection to an instance with its pinned host key and the current private key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from winpod.errors import InvalidInput
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.errors import HostKeyChanged, LoginRefused
from winpod.instances.ssh.authorized_keys import SshKeys, authorize_key, public_line, revoke_key
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.login import SshLogin


class PinnedKey:
    """Host key of one instance; a new one has to be saved in its status."""

    def __init__(self, key: str) -> None:
        self.key = key

    def pinned(self, instance: str) -> str | None:
        del instance
        return self.key or None

    def pin(self, instance: str, key: str) -> None:
        del instance
        self.key = key


@asynccontextmanager
async def connect(
    instance: WindowsInstance, keys: SshKeys, problem: str, pinned: PinnedKey
) -> AsyncIterator[SshHost]:
    """Connect; `problem` is why there is no private key, if there is none."""
    if keys.now is None:
        raise InvalidInput(problem)
    spec = instance.spec
    login = SshLogin(instance.name, spec.address, spec.username, spec.port)
    async with SshHost(login, keys.now, pinned) as host:
        try:
            await host.connect()
        except LoginRefused:
            if keys.old is None:
                raise
            async with SshHost(login, keys.old, pinned) as old_host:
                await authorize_key(old_host, public_line(keys.now))
            await host.connect()
        except HostKeyChanged as error:
            error.hint = _trust_again(instance)
            raise
        yield host


async def remove_old_key(
    host: SshHost, instance: WindowsInstance, keys: SshKeys, record: Callable[[str, str], None]
) -> str:
    """Revoke the previous key, and return the public key in use."""
    new = public_line(keys.now) if keys.now else ""
    old = instance.status.login_key
    if old and old != new and await revoke_key(host, old):
        record("InstanceKeyReplaced", "the new key is in use, and the old one is revoked")
    return new


def _trust_again(instance: WindowsInstance) -> str:
    target = f"-n {instance.metadata.namespace} windowsinstance {instance.name}"
    patch = '{"status":{"hostKey":""}}'
    return (
        "If the machine was reinstalled, trust it again: "
        f"kubectl patch {target} --subresource=status --type=merge -p '{patch}'"
    )

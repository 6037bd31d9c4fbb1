"""Where the node's API listens, and with what: the certificate and the authority in its files now.

What is replaced on disk is used by every connection that is made afterwards, and nothing of the
old is: not its authority, not its sessions. Connections that are open keep what they began with.
Nobody is turned away in between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from winpod.windows.errors import InvalidInput, Unavailable

_LOOK_SECONDS = 1.0
Versions = list[tuple[int, int]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingFiles:
    """The certificate and its key, and the authorities that clients' certificates are of."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def versions(self) -> Versions:
        """Others after something was replaced."""
        files = (self.certificate, self.key, self.client_authority)
        found = [file.stat() for file in files if file]
        return [(one.st_mtime_ns, one.st_ino) for one in found]

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        authority = self.client_authority.read_text() if self.client_authority else ""
        if authority.strip():
            context.load_verify_locations(cadata=authority)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class Listening:
    """At one socket, until it is closed."""

    def __init__(self, runner: web.AppRunner, files: ServingFiles, at: socket.socket) -> None:
        self._runner = runner
        self._files = files
        self._socket = at
        self._site: web.SockSite | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        try:
            known = self._files.versions()
            await self._serve_with(self._files.context())
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"The node's API has no certificate to serve with: {self._files.certificate}: "
                f"{error}.",
                "Give a certificate and its key in PEM form.",
            ) from None
        self._watching = asyncio.create_task(self._follow(known))

    def close(self) -> None:
        if self._watching:
            self._watching.cancel()
        self._socket.close()

    async def _serve_with(self, context: ssl.SSLContext) -> None:
        """Listens anew at the same socket, and stops the one before, whose connections go on."""
        before = self._site
        self._site = web.SockSite(self._runner, self._socket.dup(), ssl_context=context)
        await self._site.start()
        if before:
            await before.stop()

    async def _follow(self, known: Versions) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                before, known = known, self._files.versions()
                if known != before:
                    await self._serve_with(self._files.context())
            except (OSError, ValueError) as error:
                _log.warning("new files at %s are of no use: %s", self._files.certificate, error)


def socket_at(host: str, port: int) -> socket.socket:
    """Port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Unavailable(
            f"The node's API cannot listen on {host} port {port}: {error.strerror}.",
            "Free the port or choose another.",
        ) from error

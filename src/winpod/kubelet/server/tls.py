"""TLS listener of the kubelet API that reloads its certificate and client CA from disk.

New connections use the new files only: neither the old CA nor its TLS sessions are accepted. Open
connections continue, and no connection is refused during a reload.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from winpod.errors import InvalidInput

_POLL_SECONDS = 1.0
Versions = list[tuple[int, int]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Serving certificate and key, and the CA of client certificates."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def versions(self) -> Versions:
        """Return values that change when a file is replaced."""
        files = (self.certificate, self.key, self.client_authority)
        stats = [file.stat() for file in files if file]
        return [(stat.st_mtime_ns, stat.st_ino) for stat in stats]

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        authority = self.client_authority.read_text() if self.client_authority else ""
        if authority.strip():
            context.load_verify_locations(cadata=authority)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class TlsListener:
    """Serves on one socket until closed."""

    def __init__(self, runner: web.AppRunner, files: TlsFiles, listening: socket.socket) -> None:
        self._runner = runner
        self._files = files
        self._socket = listening
        self._site: web.SockSite | None = None
        self._watch_task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        try:
            versions = self._files.versions()
            await self._serve_with(self._files.context())
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"Failed to load the serving certificate {self._files.certificate}: {error}.",
                "Provide a certificate and its key in PEM format.",
            ) from None
        self._watch_task = asyncio.create_task(self._watch_files(versions))

    def close(self) -> None:
        if self._watch_task:
            self._watch_task.cancel()
        self._socket.close()

    async def _serve_with(self, context: ssl.SSLContext) -> None:
        """Serve on the same socket with a new context.

        Stop accepting with the previous one; its open connections continue.
        """
        before = self._site
        self._site = web.SockSite(self._runner, self._socket.dup(), ssl_context=context)
        await self._site.start()
        if before:
            await before.stop()

    async def _watch_files(self, versions: Versions) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                before, versions = versions, self._files.versions()
                if versions != before:
                    await self._serve_with(self._files.context())
            except (OSError, ValueError) as error:
                _log.warning(
                    "Failed to reload serving certificate %s: %s", self._files.certificate, error
                )

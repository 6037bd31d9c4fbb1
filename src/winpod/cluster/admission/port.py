"""The webhook's port, and with what it is served: certificates, and who may ask.

Both change while it is open, and the port stays open: who has connected before is answered, and
then has to connect anew.
"""

from __future__ import annotations

import logging
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from winpod.cluster.admission.certificates import Certificates
from winpod.windows.errors import InvalidInput, Unavailable

_LARGEST = 16 * 1024**2
_IDLE_SECONDS = 150.0
"""Longer than the API server keeps a connection: it is the one to close it, between requests."""
_LAST_SECONDS = 30.0
"""For those who are being answered when it closes."""
_WAITING = 1024
"""Who connects at once; beyond that, a connection takes a second longer."""
_log = logging.getLogger(__name__)


class Port:
    """Open from the first `serve` on."""

    def __init__(self, address: str, number: int, routes: Callable[[], Iterable[web.RouteDef]]):
        self._address = address
        self._number = number
        self._routes = routes
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None

    async def serve(self, context: ssl.SSLContext) -> None:
        before, listener = self._runner, self._socket or self._listen()
        self._socket = listener
        application = web.Application(client_max_size=_LARGEST)
        application.add_routes(self._routes())
        self._runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            shutdown_timeout=_LAST_SECONDS,
        )
        await self._runner.setup()
        await web.SockSite(
            self._runner, listener.dup(), ssl_context=context, backlog=_WAITING
        ).start()
        if before:
            await before.cleanup()

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()
        if self._socket:
            self._socket.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        try:
            listener = socket.create_server((self._address, self._number), family=family)
        except OSError as error:
            raise Unavailable(
                f"the webhook cannot listen on {self._address} port {self._number}: "
                f"{error.strerror}.",
                "Free the port or choose another.",
            ) from error
        port = int(listener.getsockname()[1])
        told = {"webhook_port": port}
        _log.info("the webhook listens at %s, port %s", self._address, port, extra=told)
        return listener


class ClientAuthority:
    """A file of certificates, as it is now; one that becomes unreadable changes nothing."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._good = _read_authority(file) if file else ""
        self._told = ""

    def now(self) -> str:
        """In PEM form; empty where everybody may ask."""
        if self._file is None:
            return ""
        try:
            self._good, self._told = _read_authority(self._file), ""
        except InvalidInput as error:
            if str(error) != self._told:
                _log.warning("%s The one before it stays.", error)
            self._told = str(error)
        return self._good


def _read_authority(file: Path) -> str:
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(
            f"{file} cannot be read as the authority of the webhook's clients: {reason}.",
            "Give a file of certificates in PEM form.",
        ) from error
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


def serving_context(serving: Certificates, client_authority: str) -> ssl.SSLContext:
    """Where there is an authority for clients, only who has a certificate of it is answered."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serving.pem"
        file.touch(0o600)
        file.write_bytes(serving.chain + serving.key)
        context.load_cert_chain(file)
    if client_authority:
        context.load_verify_locations(cadata=client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context

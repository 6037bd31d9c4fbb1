"""Serves the webhook, and renews its certificates and client CA.

When certificates or the client CA change, the socket stays open: requests in flight are answered on
the old connections, which are then closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from winpod.concurrency import supervise
from winpod.errors import InvalidInput, WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.tls import bind_socket, load_certificate_chain
from winpod.labels import WEBHOOK_SERVICE
from winpod.operator.admission.certificates import (
    Certificates,
    inject_ca_bundle,
    shared_certificates,
)
from winpod.operator.admission.class_selection import warm_up
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.admission.webhook import RefusedReview, Webhook
from winpod.operator.cluster_cache import ClusterCache
from winpod.operator.image_lookup import operator_lookup
from winpod.operator.pull_secrets import PullSecrets
from winpod.operator.settings_watcher import SettingsWatcher

_MAX_BODY = 16 * 1024**2
_IDLE_SECONDS = 150.0
"""Longer than the API server keeps connections, so that it closes them, between requests."""
_SHUTDOWN_SECONDS = 30.0
"""Grace period for requests in flight."""
_BACKLOG = 1024
"""Listen backlog; connections beyond it are retried after a second."""
_log = logging.getLogger(__name__)


class WebhookListener:
    """Listens from the first call of `serve`."""

    def __init__(self, address: str, port: int, routes: Callable[[], Iterable[web.RouteDef]]):
        self._address = address
        self._port = port
        self._routes = routes
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None

    async def serve(self, context: ssl.SSLContext) -> None:
        previous, listener = self._runner, self._socket or self._listen()
        self._socket = listener
        application = web.Application(client_max_size=_MAX_BODY)
        application.add_routes(self._routes())
        self._runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await self._runner.setup()
        await web.SockSite(
            self._runner, listener.dup(), ssl_context=context, backlog=_BACKLOG
        ).start()
        if previous:
            await previous.cleanup()

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()
        if self._socket:
            self._socket.close()

    def _listen(self) -> socket.socket:
        listener = bind_socket("The webhook", self._address, self._port)
        port = int(listener.getsockname()[1])
        extra = {"webhook_port": port}
        _log.info("Webhook listening on %s, port %s", self._address, port, extra=extra)
        return listener


class ClientCa:
    """The client CA file; while it is unreadable, the last valid contents are used."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._pem = _read_ca(file) if file else ""
        self._reported = ""

    def read(self) -> str:
        """Return the CA in PEM; empty if clients need no certificate."""
        if self._file is None:
            return ""
        try:
            self._pem, self._reported = _read_ca(self._file), ""
        except InvalidInput as error:
            if str(error) != self._reported:
                _log.warning("Keeping the previous client CA: %s", error)
            self._reported = str(error)
        return self._pem


def _read_ca(file: Path) -> str:
    try:
        certificates = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(
            f"failed to read the webhook's client CA {file}: {reason}.",
            "Use a file of certificates in PEM.",
        ) from error
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def serving_context(serving: Certificates, client_ca: str) -> ssl.SSLContext:
    """Build the TLS context; with a client CA, clients need a certificate signed by it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate_chain(context, serving.chain, serving.key)
    if client_ca:
        context.load_verify_locations(cadata=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


_RENEW_SECONDS = 20.0
_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    namespace: str
    address: str = "0.0.0.0"  # noqa: S104 - the API server is elsewhere
    port: int = 8443
    client_ca: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the Service, and of localhost for tests."""
        service = f"{WEBHOOK_SERVICE}.{self.namespace}.svc"
        return (service, f"{service}.cluster.local", "localhost", "127.0.0.1")


class WebhookServer:
    """The webhook server. `images` and `secrets` are shared, also if the webhook is disabled."""

    def __init__(
        self,
        api: ApiClient,
        cache: ClusterCache,
        settings: SettingsWatcher,
        metrics: AdmissionMetrics,
        options: WebhookOptions,
        on_refusal: Callable[[RefusedReview], None] = lambda _: None,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._api = api
        self._retry_seconds = retry_seconds
        self._cache = cache
        self._options = options
        self.images = operator_lookup(lambda: settings.now.admission.tag_seconds, metrics)
        self.secrets = PullSecrets(api)
        self.webhook = Webhook(
            cache,
            self.images,
            self.secrets,
            settings,
            metrics,
            options.namespace,
            on_refusal,
        )
        self._client_ca = ClientCa(options.client_ca)
        self._certificates: Certificates | None = None

    async def run(self) -> None:
        """Listen as soon as there are certificates, and keep them renewed."""
        port = WebhookListener(self._options.address, self._options.port, self.webhook.routes)
        warming = asyncio.create_task(supervise("preparing", self._keep_warm))
        try:
            await self._serve_certificates(port)
        finally:
            warming.cancel()
            await port.close()

    async def _keep_warm(self) -> None:
        """Fill the placement caches after each change, ahead of the next review.

        The initial cache is excluded from garbage collection, which would delay reviews as well.
        """
        changed = self._cache.subscribe()
        await self._cache.wait_synced()
        gc.collect()
        gc.freeze()
        while True:
            warm_up(self._cache.cluster())
            await changed.wait()
            changed.clear()
            await asyncio.sleep(self._cache.usage_staleness)

    async def _serve_certificates(self, port: WebhookListener) -> None:
        """Renew certificates and client CA periodically, and serve with the latest."""
        served = None
        while True:
            succeeded = await self._renew_certificates()
            if self._certificates:
                desired = (self._certificates, self._client_ca.read())
                if desired != served:
                    await port.serve(serving_context(*desired))
                served = desired
            await asyncio.sleep(_RENEW_SECONDS if succeeded else self._retry_seconds)

    async def _renew_certificates(self) -> bool:
        """Renew certificates if needed; return whether they are in place and trusted."""
        try:
            self._certificates = await shared_certificates(
                self._api, self._options.namespace, self._options.names
            )
            return await inject_ca_bundle(self._api, self._certificates.bundle)
        except WinpodError as error:
            _log.warning("Failed to renew webhook certificates: %s", error)
            return False

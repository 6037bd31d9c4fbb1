"""The webhook at its port: with certificates of its own, renewed while it listens.

Where there is an authority for clients, only who has a certificate of it is answered.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from winpod.cluster.admission.certificates import Certificates
from winpod.cluster.admission.choosing import prepare
from winpod.cluster.admission.looking_up import Images
from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.admission.secret import shared_certificates, trust_authority
from winpod.cluster.admission.webhook import Refusal, Webhook
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.view import View
from winpod.node.api import ApiServer
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError

_SERVICE = "winpod-webhook"
_LARGEST = 16 * 1024**2
_IDLE_SECONDS = 150.0
"""Longer than the API server keeps a connection: it is the one to close it, between requests."""
_LOOK_SECONDS = 20.0
_RETRY_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listening:
    namespace: str
    address: str = "0.0.0.0"  # noqa: S104 - the API server is elsewhere
    port: int = 8443
    client_authority: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The Service's, and this machine's for those who try it out."""
        service = f"{_SERVICE}.{self.namespace}.svc"
        return (service, f"{service}.cluster.local", "localhost", "127.0.0.1")


class WebhookServer:
    def __init__(
        self,
        api: ApiServer,
        view: View,
        settings: LiveSettings,
        metrics: AdmissionMetrics,
        listening: Listening,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._view = view
        self._listening = listening
        self.images = Images(lambda: settings.now.admission.tag_seconds, metrics)
        self.secrets = PullSecrets(api)
        self.webhook = Webhook(
            view,
            self.images,
            self.secrets,
            lambda: settings.now,
            metrics,
            listening.namespace,
            on_refusal,
        )
        self._context = serving_context(listening.client_authority)
        self._serving: Certificates | None = None

    async def run(self) -> None:
        """Listens once it has something to serve with, and looks after that for good."""
        application = web.Application(client_max_size=_LARGEST)
        application.add_routes(self.webhook.routes())
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=_IDLE_SECONDS)
        await runner.setup()
        preparing = asyncio.create_task(self._prepare())
        try:
            while True:
                is_well = await self._renewed()
                if self._serving and not runner.sites:
                    await self._listen(runner)
                await asyncio.sleep(_LOOK_SECONDS if is_well else _RETRY_SECONDS)
        finally:
            preparing.cancel()
            await runner.cleanup()
            await self.images.close()

    async def _prepare(self) -> None:
        """Whoever asks after a change finds the cluster looked through already.

        What is known of it from the start is not searched for garbage, which takes long as well.
        """
        changed = self._view.subscribe()
        await self._view.until_known()
        gc.collect()
        gc.freeze()
        while True:
            prepare(self._view.cluster())
            await changed.wait()
            changed.clear()
            await asyncio.sleep(self._view.rest_seconds)

    async def _listen(self, runner: web.AppRunner) -> None:
        address, port = self._listening.address, self._listening.port
        try:
            await web.TCPSite(runner, address, port, ssl_context=self._context).start()
        except OSError as error:
            raise Unavailable(
                f"the webhook cannot listen on {address} port {port}: {error.strerror}.",
                "Free the port or choose another.",
            ) from error
        port = int(runner.addresses[0][1])
        told = {"webhook_port": port}
        _log.info("the webhook listens at %s, port %s", address, port, extra=told)

    async def _renewed(self) -> bool:
        """Whether all is as it should be; connections to come are served with what is new."""
        try:
            found = await shared_certificates(
                self._api, self._listening.namespace, self._listening.names
            )
            if found != self._serving:
                _load(self._context, found)
                self._serving = found
            return await trust_authority(self._api, found.bundle)
        except WinpodError as error:
            _log.warning("the webhook's certificates cannot be looked after: %s", error)
            return False


def serving_context(client_authority: Path | None) -> ssl.SSLContext:
    """Without the certificates to serve with, which change."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if client_authority is None:
        return context
    try:
        context.load_verify_locations(client_authority)
    except OSError as error:
        raise InvalidInput(
            f"{client_authority} cannot be read as the authority of the webhook's clients: "
            f"{error.strerror or error}.",
            "Give a file of certificates in PEM form.",
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(context: ssl.SSLContext, found: Certificates) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serving.pem"
        file.touch(0o600)
        file.write_bytes(found.chain + found.key)
        context.load_cert_chain(file)

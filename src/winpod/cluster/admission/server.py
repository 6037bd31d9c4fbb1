"""The webhook with all that it needs, at its port: certificates of its own are looked after."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from winpod.cluster.admission.certificates import Certificates
from winpod.cluster.admission.choosing import prepare
from winpod.cluster.admission.looking_up import Images
from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.cluster.admission.port import ClientAuthority, Port, serving_context
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.admission.secret import shared_certificates, trust_authority
from winpod.cluster.admission.webhook import Refusal, Webhook
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.view import View
from winpod.node.agent import for_good
from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError

_SERVICE = "winpod-webhook"
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
    """`images` and `secrets` are others' too, also where it does not run."""

    def __init__(
        self,
        api: ApiServer,
        view: View,
        settings: LiveSettings,
        metrics: AdmissionMetrics,
        listening: Listening,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._api = api
        self._retry_seconds = retry_seconds
        self._view = view
        self._listening = listening
        self.images = Images(lambda: settings.now.admission.tag_seconds, metrics)
        self.secrets = PullSecrets(api)
        self.webhook = Webhook(
            view,
            self.images,
            self.secrets,
            settings,
            metrics,
            listening.namespace,
            on_refusal,
        )
        self._client_authority = ClientAuthority(listening.client_authority)
        self._certificates: Certificates | None = None

    async def run(self) -> None:
        """Listens once it has something to serve with, and looks after that for good."""
        port = Port(self._listening.address, self._listening.port, self.webhook.routes)
        preparing = asyncio.create_task(for_good("preparing", self._prepare))
        try:
            await self._look_after(port)
        finally:
            preparing.cancel()
            await port.close()

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

    async def _look_after(self, port: Port) -> None:
        """Who connects is served with what is new, and so is who may ask."""
        served = None
        while True:
            is_well = await self._renewed()
            if self._certificates:
                wanted = (self._certificates, self._client_authority.now())
                if wanted != served:
                    await port.serve(serving_context(*wanted))
                served = wanted
            await asyncio.sleep(_LOOK_SECONDS if is_well else self._retry_seconds)

    async def _renewed(self) -> bool:
        """Whether all is as it should be."""
        try:
            self._certificates = await shared_certificates(
                self._api, self._listening.namespace, self._listening.names
            )
            return await trust_authority(self._api, self._certificates.bundle)
        except WinpodError as error:
            _log.warning("the webhook's certificates cannot be looked after: %s", error)
            return False

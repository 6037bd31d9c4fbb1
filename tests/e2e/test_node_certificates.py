"""Certificate rotation and CA changes while a node keeps running."""

import asyncio
import base64
import http.client
import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from tests.e2e.controlplane import ControlPlane
from tests.e2e.controlplane.certificates import Certificate, new_authority
from tests.support.e2e.bootstrap import bootstrap_token_of, requests_of
from tests.support.e2e.node_process import NodeProcess, is_ready, node, simulated_runtime
from tests.support.e2e.waiting import eventually

from winpod.clock import utc_now
from winpod.errors import Unavailable
from winpod.k8s.certificates import PrivateKey, node_subject, write_chain
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import RestConfig, read_kubeconfig, token_config, write_kubeconfig
from winpod.k8s.models import authentication_v1
from winpod.kubelet.node.certificate_manager import (
    NodeIdentity,
    RenewalErrors,
    rotate_client_certificate,
    watch_kubeconfig,
)

NAME = "short-win"
USER = f"system:node:{NAME}"
LOOPBACK = "127.0.0.1"
SHORT = "90s"
"""Signers backdate by five minutes, so 80% of this lifetime is over after 12 seconds."""
CREDENTIAL = "authentication.kubernetes.io/credential-id"


@dataclass
class ShortLived:
    """A node that joined with a token, in a cluster that signs short-lived certificates."""

    plane: ControlPlane
    process: NodeProcess
    kubeconfig: Path
    pki: Path

    @property
    def port(self) -> int:
        endpoints = node(self.plane, NAME)["status"]["daemonEndpoints"]
        return int(endpoints["kubeletEndpoint"]["Port"])

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait, and meanwhile approve serving certificates, which no controller does."""
        eventually(lambda: self._approve() and holds())

    def _approve(self) -> bool:
        for item in requests_of(self.plane, USER):
            is_serving = item["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
            if is_serving and not item["status"].get("conditions"):
                self.plane.kubectl("certificate", "approve", item["metadata"]["name"])
        return True

    def client(self) -> str:
        return fingerprint((self.pki / "client.pem").read_bytes())

    def served(self) -> str:
        """Fingerprint of the node API's certificate, or empty if the CA did not sign it."""
        trust = ssl.create_default_context(cafile=str(self.plane.authority))
        try:
            status, certificate, _ = self._get("/healthz", trust)
        except OSError:
            return ""
        assert status == HTTPStatus.UNAUTHORIZED
        return certificate

    def status_for(self, client: Certificate) -> int:
        try:
            return self._get("/healthz", self._client_context(client))[0]
        except OSError:
            return 0

    def seconds_left(self, client: Certificate) -> dict[str, float]:
        """Remaining lifetime of the node's certificates, from its metrics."""
        *_, text = self._get("/metrics", self._client_context(client))
        found = re.findall(r"^kubelet_certificate_manager_(\w+)_ttl_seconds (\S+)$", text, re.M)
        return {name: float(value) for name, value in found}

    def _client_context(self, client: Certificate) -> ssl.SSLContext:
        trust = ssl.create_default_context(cafile=str(self.plane.authority))
        trust.load_cert_chain(client.certificate, client.key)
        return trust

    def _get(self, path: str, trust: ssl.SSLContext) -> tuple[int, str, str]:
        connection = http.client.HTTPSConnection(LOOPBACK, self.port, context=trust, timeout=10)
        try:
            connection.connect()
            certificate = connection.sock.getpeercert(binary_form=True)
            assert certificate
            connection.request("GET", path)
            found = x509.load_der_x509_certificate(certificate)
            response = connection.getresponse()
            shown = found.fingerprint(hashes.SHA256()).hex()
            return response.status, shown, response.read().decode()
        finally:
            connection.close()

    def requested_with(self) -> set[str]:
        """Fingerprints of the client certificates that the node's CSRs were sent with."""
        extras = (item["spec"].get("extra", {}) for item in requests_of(self.plane, USER))
        shown = (text for extra in extras for text in extra.get(CREDENTIAL, []))
        return {text.removeprefix("X509SHA256=") for text in shown}


def fingerprint(chain: bytes) -> str:
    return x509.load_pem_x509_certificate(chain).fingerprint(hashes.SHA256()).hex()


@pytest.fixture
def short_lived(tmp_path: Path) -> Iterator[ShortLived]:
    plane = ControlPlane(tmp_path / "cluster", scheduler=False, signing_duration=SHORT)
    with plane, bootstrap_token_of(plane) as token:
        runtime = simulated_runtime(tmp_path, "2019")
        kubeconfig = tmp_path / "kubeconfig"
        process = NodeProcess(
            tmp_path,
            *("--kubeconfig", str(kubeconfig), "--name", NAME, "--build", "2019"),
            *("--server", plane.server, "--token", token),
            *("--runtime", str(tmp_path / "cri.sock"), "--port", "0"),
        )
        try:
            with process:
                eventually(lambda: is_ready(plane, NAME))
                pki = tmp_path / f"root/nodes/{NAME}/pki"
                yield ShortLived(plane, process, kubeconfig, pki)
        finally:
            runtime.stop()


def test_certificates_are_rotated_and_ca_is_reloaded_without_a_restart(
    short_lived: ShortLived, tmp_path: Path
) -> None:
    first = short_lived.client()
    served: set[str] = set()

    def has_served(count: int) -> bool:
        served.update({short_lived.served()} - {""})
        return len(served) >= count

    short_lived.wait_until(lambda: has_served(1))
    short_lived.wait_until(lambda: short_lived.client() != first)
    before = short_lived.requested_with()
    assert before
    short_lived.wait_until(lambda: has_served(2))
    short_lived.wait_until(lambda: bool(short_lived.requested_with() - before - {first}))

    newer = new_authority(tmp_path, "newer")
    new_client = newer.client("somebody", "somebody", "system:masters")
    assert short_lived.status_for(new_client) == 0
    old_client = short_lived.plane.client_certificate("admin-again", "system:masters")
    set_authorities(short_lived.kubeconfig, short_lived.plane.authority, newer.certificate)
    short_lived.wait_until(lambda: short_lived.status_for(new_client) == HTTPStatus.OK)
    short_lived.wait_until(lambda: short_lived.status_for(old_client) == HTTPStatus.OK)
    remaining = short_lived.seconds_left(old_client)
    assert remaining["client"] < 90
    assert remaining["server"] < 90
    assert is_ready(short_lived.plane, NAME)
    assert "Reloaded the kubeconfig of node" in short_lived.process.log.read_text()


async def test_expired_client_certificate_is_replaced_by_bootstrapping(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    identity = NodeIdentity("late-win", tmp_path / "kubeconfig", tmp_path / "pki")
    key, long_ago = PrivateKey.new(), utc_now() - timedelta(days=400)
    write_chain(identity.client, key.self_signed(node_subject("late-win"), long_ago), key)
    authority = control_plane.authority.read_bytes()
    write_kubeconfig(identity.kubeconfig, control_plane.server, authority, identity.client)
    with bootstrap_token_of(control_plane) as token:

        async def bootstrap() -> RestConfig:
            return token_config(control_plane.server, token, authority)

        access = read_kubeconfig(identity.kubeconfig)
        server = ApiClient(access)
        tasks = asyncio.gather(
            rotate_client_certificate(identity, server, bootstrap, RenewalErrors()),
            watch_kubeconfig(identity, access, server),
        )
        try:
            async with asyncio.timeout(300):
                while not await is_authenticated(server):  # noqa: ASYNC110
                    await asyncio.sleep(0.3)
        finally:
            tasks.cancel()
            with suppress(asyncio.CancelledError):
                await tasks
            await server.close()


async def is_authenticated(server: ApiClient) -> bool:
    review = authentication_v1.SelfSubjectReview()
    try:
        answer = await server.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except Unavailable:
        return False
    user = answer.status.userInfo if answer.status else None
    return user is not None and user.username == "system:node:late-win"


def set_authorities(kubeconfig: Path, *authorities: Path) -> None:
    document = json.loads(kubeconfig.read_text())
    bundle = b"".join(authority.read_bytes() for authority in authorities)
    cluster = document["clusters"][0]["cluster"]
    cluster["certificate-authority-data"] = base64.b64encode(bundle).decode()
    new = kubeconfig.with_suffix(".new")
    new.write_text(json.dumps(document))
    new.replace(kubeconfig)

"""How long the node's certificates are still good, under the names that a cluster's alerts know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from winpod.node.certificates import Validity

_CLIENT, _SERVING = "kubelet_certificate_manager_client", "kubelet_certificate_manager_server"


@dataclass(slots=True)
class Renewals:
    """How often a certificate could not be had."""

    client_errors: int = 0
    serving_errors: int = 0


def certificate_families(
    client: Validity | None, serving: Validity | None, renewals: Renewals, now: datetime
) -> Iterator[Metric]:
    for name, validity, words in (
        (f"{_CLIENT}_ttl_seconds", client, "How long the client certificate is good."),
        (f"{_SERVING}_ttl_seconds", serving, "How long the serving certificate is good."),
    ):
        left = (validity.ends - now).total_seconds() if validity else inf
        yield GaugeMetricFamily(name, f"{words} Infinite where there is none.", left)
    for name, errors in (
        (f"{_CLIENT}_expiration_renew_errors", renewals.client_errors),
        ("kubelet_server_expiration_renew_errors", renewals.serving_errors),
    ):
        family = Metric(name, "How often the cluster gave no new certificate.", "unknown")
        family.add_sample(name, {}, errors)
        yield family

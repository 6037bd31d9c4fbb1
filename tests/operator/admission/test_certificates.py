"""Tests of renewing the webhook's certificates, verified with real handshakes."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from winpod.clock import utc_now
from winpod.operator.admission.certificates import Certificates, are_valid, renew_certificates

NAMES = ("winpod-webhook.ns.svc", "127.0.0.1")
DAY = timedelta(days=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def handshake(found: Certificates, name: str, folder: Path, bundle: bytes = b"") -> None:
    """Shake hands between a server with the certificate and a client that trusts the CA."""
    (folder / "serving.pem").write_bytes(found.chain + found.key)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(folder / "serving.pem")
    trusting = ssl.create_default_context(cadata=(bundle or found.bundle).decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for one in (client, server, client, server):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize("name", NAMES)
def test_client_with_the_bundle_trusts_the_server(name: str, tmp_path: Path) -> None:
    handshake(renew_certificates(None, NAMES, utc_now()), name, tmp_path)


def test_other_host_names_are_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(renew_certificates(None, NAMES, utc_now()), "elsewhere.svc", tmp_path)


def test_certificates_are_valid_until_80_percent_of_their_lifetime() -> None:
    made = renew_certificates(None, NAMES, LONG_AGO)
    assert are_valid(made, NAMES, LONG_AGO + 290 * DAY)
    assert not are_valid(made, NAMES, LONG_AGO + 293 * DAY)
    assert not are_valid(made, (*NAMES, "more.svc"), LONG_AGO)


def test_valid_ca_is_reused() -> None:
    first = renew_certificates(None, NAMES, LONG_AGO)
    second = renew_certificates(first, NAMES, LONG_AGO + 300 * DAY)
    assert (second.bundle, second.authority_key) == (first.bundle, first.authority_key)
    assert second.chain != first.chain


def test_previous_ca_stays_in_the_bundle(tmp_path: Path) -> None:
    nearly_ten_years = utc_now() - 3400 * DAY
    old = renew_certificates(None, NAMES, nearly_ten_years)
    serving = renew_certificates(old, NAMES, nearly_ten_years + 2900 * DAY)
    assert serving.bundle == old.bundle
    new = renew_certificates(serving, NAMES, utc_now())
    assert new.bundle.startswith(new.bundle.removesuffix(old.bundle))
    assert old.bundle in new.bundle
    handshake(new, NAMES[0], tmp_path)
    later = renew_certificates(new, NAMES, utc_now() + 3650 * DAY)
    assert old.bundle not in later.bundle


@pytest.mark.parametrize("field", ["bundle", "authority_key", "chain", "key"])
@pytest.mark.parametrize("damage", [b"", b"nonsense", b"other"])
def test_damaged_certificates_are_renewed(field: str, damage: bytes) -> None:
    made = renew_certificates(None, NAMES, utc_now())
    other = renew_certificates(None, NAMES, utc_now())
    values = {name: getattr(made, name) for name in Certificates.__dataclass_fields__}
    values[field] = getattr(other, field) if damage == b"other" else damage
    damaged = Certificates(**values)
    assert not are_valid(damaged, NAMES, utc_now())
    assert are_valid(renew_certificates(damaged, NAMES, utc_now()), NAMES, utc_now())

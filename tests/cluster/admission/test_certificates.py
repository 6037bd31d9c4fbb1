"""The webhook's authority and certificates over the years, checked by a real handshake."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from winpod.cluster.admission.certificates import Certificates, are_good, renew
from winpod.node.certificates import utc_now

NAMES = ("winpod-webhook.ns.svc", "127.0.0.1")
DAY = timedelta(days=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def handshake(found: Certificates, name: str, folder: Path, bundle: bytes = b"") -> None:
    """Between a server with the certificate and a client that trusts the authority."""
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
def test_who_trusts_the_bundle_believes_the_server(name: str, tmp_path: Path) -> None:
    handshake(renew(None, NAMES, utc_now()), name, tmp_path)


def test_another_name_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(renew(None, NAMES, utc_now()), "elsewhere.svc", tmp_path)


def test_new_ones_are_good_until_four_fifths_of_their_time() -> None:
    made = renew(None, NAMES, LONG_AGO)
    assert are_good(made, NAMES, LONG_AGO + 290 * DAY)
    assert not are_good(made, NAMES, LONG_AGO + 293 * DAY)
    assert not are_good(made, (*NAMES, "more.svc"), LONG_AGO)


def test_the_authority_signs_again_while_it_lasts() -> None:
    first = renew(None, NAMES, LONG_AGO)
    second = renew(first, NAMES, LONG_AGO + 300 * DAY)
    assert (second.bundle, second.authority_key) == (first.bundle, first.authority_key)
    assert second.chain != first.chain


def test_an_old_authority_stays_trusted_beside_its_successor(tmp_path: Path) -> None:
    nearly_ten_years = utc_now() - 3400 * DAY
    old = renew(None, NAMES, nearly_ten_years)
    serving = renew(old, NAMES, nearly_ten_years + 2900 * DAY)
    assert serving.bundle == old.bundle
    new = renew(serving, NAMES, utc_now())
    assert new.bundle.startswith(new.bundle.removesuffix(old.bundle))
    assert old.bundle in new.bundle
    handshake(new, NAMES[0], tmp_path)
    later = renew(new, NAMES, utc_now() + 3650 * DAY)
    assert old.bundle not in later.bundle


@pytest.mark.parametrize("field", ["bundle", "authority_key", "chain", "key"])
@pytest.mark.parametrize("damage", [b"", b"nonsense", b"other"])
def test_damaged_ones_are_not_good_and_are_renewed(field: str, damage: bytes) -> None:
    made = renew(None, NAMES, utc_now())
    other = renew(None, NAMES, utc_now())
    values = {name: getattr(made, name) for name in Certificates.__dataclass_fields__}
    values[field] = getattr(other, field) if damage == b"other" else damage
    damaged = Certificates(**values)
    assert not are_good(damaged, NAMES, utc_now())
    assert are_good(renew(damaged, NAMES, utc_now()), NAMES, utc_now())

"""Bootstrap tokens: one per instance, short-lived, and never printed."""

import base64
import re
from datetime import UTC, datetime, timedelta

from winpod.instances.cluster.bootstrap_tokens import (
    LIFETIME,
    BootstrapTokens,
    new_token,
    token_object,
    with_token,
)
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import token_config
from winpod.labels import BOOTSTRAP_GROUP

NOW = datetime(2026, 11, 16, 8, 30, 0, 5, tzinfo=UTC)


def tokens_at(clock: list[datetime]) -> BootstrapTokens:
    return BootstrapTokens(ApiClient(token_config("https://127.0.0.1:1", "")), lambda: clock[0])


def test_token_secret_has_the_api_server_format_and_only_bootstraps() -> None:
    token = new_token(NOW)
    made = token_object(token, "10.0.0.5")
    data = {key: base64.b64decode(text).decode() for key, text in (made.data or {}).items()}
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", token.text)
    assert made.metadata
    assert made.metadata.name == f"bootstrap-token-{token.id}"
    assert data["expiration"] == "2026-11-16T10:30:00Z"
    assert data["auth-extra-groups"] == BOOTSTRAP_GROUP
    assert "usage-bootstrap-signing" not in data


def test_secret_half_is_not_in_repr() -> None:
    token = new_token(NOW)
    assert token.secret not in repr(token)


def test_instance_keeps_its_token_until_it_expires_soon() -> None:
    clock = [NOW]
    tokens = tokens_at(clock)
    first = tokens.get_or_create("a")
    assert tokens.get_or_create("a") == first
    assert tokens.get_or_create("b") != first
    clock[0] = NOW + LIFETIME / 3
    assert tokens.get_or_create("a") == first
    clock[0] = NOW + LIFETIME / 2 + timedelta(minutes=1)
    assert tokens.get_or_create("a") != first
    tokens.delete("a")
    assert tokens.get_or_create("a") != first


def test_newest_token_ids_are_kept() -> None:
    known: list[str] = []
    for token in ("a", "b", "c", "a", "d", "e"):
        known = with_token(known, token)
    assert known == ["c", "a", "d", "e"]

"""Tokens: one for each instance, good for a while, and never printed."""

import base64
import re
from datetime import UTC, datetime, timedelta

from winpod.instances.cluster.signing import BOOTSTRAP_GROUP
from winpod.instances.cluster.tokens import LIFE, Tokens, new_token, token_object, with_token
from winpod.node.access import token_access
from winpod.node.api import ApiServer

NOW = datetime(2026, 11, 16, 8, 30, 0, 5, tzinfo=UTC)


def tokens_at(clock: list[datetime]) -> Tokens:
    return Tokens(ApiServer(token_access("https://127.0.0.1:1", "")), lambda: clock[0])


def test_a_token_is_as_the_api_server_takes_it_and_joins_and_nothing_else() -> None:
    token = new_token(NOW)
    made = token_object(token, "10.0.0.5")
    data = {key: base64.b64decode(text).decode() for key, text in (made.data or {}).items()}
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", token.text)
    assert made.metadata
    assert made.metadata.name == f"bootstrap-token-{token.id}"
    assert data["expiration"] == "2026-11-16T10:30:00Z"
    assert data["auth-extra-groups"] == BOOTSTRAP_GROUP
    assert "usage-bootstrap-signing" not in data


def test_a_token_s_secret_half_is_not_in_what_is_printed_of_it() -> None:
    token = new_token(NOW)
    assert token.secret not in repr(token)


def test_an_instance_keeps_its_token_until_it_is_old_and_has_one_of_its_own() -> None:
    clock = [NOW]
    tokens = tokens_at(clock)
    first = tokens.of("a")
    assert tokens.of("a") == first
    assert tokens.of("b") != first
    clock[0] = NOW + LIFE / 3
    assert tokens.of("a") == first
    clock[0] = NOW + LIFE / 2 + timedelta(minutes=1)
    assert tokens.of("a") != first
    tokens.forget("a")
    assert tokens.of("a") != first


def test_the_newest_public_halves_are_known() -> None:
    known: list[str] = []
    for token in ("a", "b", "c", "a", "d", "e"):
        known = with_token(known, token)
    assert known == ["c", "a", "d", "e"]

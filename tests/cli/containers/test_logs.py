"""Times accepted by `winpod logs --since`; reading logs is tested in tests/kubelet."""

from datetime import UTC, datetime

import pytest

from winpod.cli.containers.logs import parse_since
from winpod.errors import InvalidInput

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("10m", "2026-01-31T11:50:00.000000"),
        ("1h30m", "2026-01-31T10:30:00.000000"),
        ("0.5s", "2026-01-31T11:59:59.500000"),
        ("2026-01-31T13:00:00+02:00", "2026-01-31T11:00:00.000000"),
        ("2026-01-31T11:00:00Z", "2026-01-31T11:00:00.000000"),
    ],
)
def test_since_accepts_a_time_or_a_duration(text: str, start: str) -> None:
    assert parse_since(text, NOW) == start


def test_invalid_since_is_rejected() -> None:
    for text in ("", "yesterday", "m"):
        with pytest.raises(InvalidInput, match="is not a time"):
            parse_since(text, NOW)

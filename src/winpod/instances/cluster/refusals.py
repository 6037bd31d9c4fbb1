"""What the API server says no to, told with the instance it was for and what was to be done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from winpod.node.api import Refused

_ADVICE = (
    "See that whoever asks has the rights that the operator's chart gives, and that no admission "
    "webhook keeps it from that."
)


@contextmanager
def asking(instance: str, to_do: str) -> Iterator[None]:
    """A part of something larger may be told with what it is itself; that stays."""
    try:
        yield
    except Refused as error:
        said = f"{instance}: could not "
        if not error.sentence.startswith(said):
            error.sentence = (
                f"{said}{to_do}: expected the API server to allow it, found that {error.sentence}"
            )
        error.advice = error.advice or _ADVICE
        raise

"""The one tree of errors.

Every failure a person can meet is a `WinpodError`: a sentence that says what was tried and what was
found, advice that says what to do, and the gRPC status the sentence travels with. It lives in the
lowest layer because every other layer raises it.
"""

from typing import ClassVar


class WinpodError(Exception):
    code: ClassVar[str] = "UNKNOWN"

    def __init__(self, sentence: str, advice: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice}" if self.advice else self.sentence


class InvalidInput(WinpodError):
    """Something a person wrote cannot be understood or contradicts itself."""

    code = "INVALID_ARGUMENT"


class NotFound(WinpodError):
    code = "NOT_FOUND"


class PermissionDenied(WinpodError):
    code = "PERMISSION_DENIED"


class Unavailable(WinpodError):
    """The other side did not answer, or not in time; the same call may go through later."""

    code = "UNAVAILABLE"

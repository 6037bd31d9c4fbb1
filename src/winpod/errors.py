"""Exception hierarchy of winpod.

Every error reported to a user is a `WinpodError`: a message with what was tried and found, a hint
with what to do, and a gRPC status code.
"""

from typing import ClassVar


class WinpodError(Exception):
    code: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class InvalidInput(WinpodError):
    """User input is invalid or contradictory."""

    code = "INVALID_ARGUMENT"


class NotFound(WinpodError):
    code = "NOT_FOUND"


class PermissionDenied(WinpodError):
    code = "PERMISSION_DENIED"


class Unavailable(WinpodError):
    """The peer did not answer in time; a retry may succeed."""

    code = "UNAVAILABLE"

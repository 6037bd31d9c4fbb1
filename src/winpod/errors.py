"""Exception hierarchy of winpod.

Every error reported to a user is a `WinpodError`: a message with what was tried and found, a hint
with what to do, a gRPC status code, and a reason. Programs compare types or reasons; messages are
for people and may change.
"""

from typing import ClassVar

ERROR_FILE_VARIABLE = "WINPOD_ERROR_FILE"
"""Environment variable with the file to which a background process writes its final error."""


class WinpodError(Exception):
    code: ClassVar[str] = "UNKNOWN"
    reason: str = "Unknown"
    """Machine-readable CamelCase reason, part of the API: the class name unless set."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.reason = vars(cls).get("reason", cls.__name__)

    def __init__(self, message: str, hint: str = "", *, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if reason:
            self.reason = reason

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def to_dict(self) -> dict[str, str]:
        """Return the error as sent to other processes."""
        return {"reason": self.reason, "message": self.message, "hint": self.hint}


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

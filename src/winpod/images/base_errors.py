"""What can go wrong when a base is built or used."""

from winpod.windows.errors import InvalidInput, Unavailable, WinpodError


class ToolMissing(WinpodError):
    """A program of this machine that the work needs is not installed."""

    code = "FAILED_PRECONDITION"


class MirrorUnavailable(Unavailable):
    """Debian's packages could not be had, or not be trusted."""


class BaseFailed(WinpodError):
    """A step did not do what it should have done."""

    code = "INTERNAL"


class BaseInUse(WinpodError):
    code = "FAILED_PRECONDITION"


class CannotRun(InvalidInput):
    """The base has not what a program needs."""

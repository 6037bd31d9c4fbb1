"""What can go wrong between a reference and the content it names."""

from winpod.windows.errors import NotFound, PermissionDenied, Unavailable, WinpodError


class ImageNotFound(NotFound):
    """Whoever was asked knows no such image, or no such part of it."""


class NotKnownOffline(Unavailable):
    """It is not known here, and nobody may be asked."""


class AccessDenied(PermissionDenied):
    """The registry wants other credentials than it was given."""


class RegistryUnavailable(Unavailable):
    """The registry did not answer, not in time, or asked to be left alone for a while."""


class BadContent(WinpodError):
    """Content that is not what its digest, its size or its format says."""

    code = "DATA_LOSS"


class NoMatch(NotFound):
    """The image has no manifest that this handler can run."""


class NotPulled(NotFound):
    """The image, or its variant for this handler, is not in the store."""


class PullStalled(Unavailable):
    """Nothing, or next to nothing, came for as long as one is ready to wait."""


class NoSpace(WinpodError):
    """The disk is full."""

    code = "RESOURCE_EXHAUSTED"


class StoreUnusable(WinpodError):
    """The store is of another version, damaged, or may not be written."""

    code = "FAILED_PRECONDITION"


class LimitExceeded(WinpodError):
    """Content that is larger, or has more in it, than is let in."""

    code = "RESOURCE_EXHAUSTED"

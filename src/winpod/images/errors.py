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

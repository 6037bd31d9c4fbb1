"""Errors of pod networking."""

from winpod.errors import NotFound, Unavailable, WinpodError


class NoCniConfig(WinpodError):
    """There is no usable CNI configuration, so pods cannot be connected."""

    code = "FAILED_PRECONDITION"


class PluginMissing(WinpodError):
    """The CNI configuration names a plugin that is not installed."""

    code = "FAILED_PRECONDITION"


class PluginFailed(WinpodError):
    """A CNI plugin returned an error."""


class PluginTimedOut(WinpodError):
    code = "DEADLINE_EXCEEDED"


class PluginNotReady(Unavailable):
    """The plugin reports that it temporarily cannot connect pods."""


class AddressesExhausted(WinpodError):
    code = "RESOURCE_EXHAUSTED"


class NetworkConflict(WinpodError):
    """The configuration conflicts with an existing network resource of this machine."""

    code = "FAILED_PRECONDITION"


class CacheUnwritable(WinpodError):
    """The CNI cache entry cannot be written, so the operation is not started."""

    code = "RESOURCE_EXHAUSTED"


class AlreadyConnected(WinpodError):
    code = "ALREADY_EXISTS"


class NotConnected(NotFound):
    """The CNI cache has no attachment of the sandbox."""


class PortNotListening(Unavailable):
    """A connection to a port of a sandbox was refused."""

    def __init__(self, sandbox: str, port: int, reason: str) -> None:
        super().__init__(f'failed to connect to localhost:{port} for pod "{sandbox}": {reason}.')


class NamespaceFailed(WinpodError):
    """The kernel failed to create, enter or remove a network namespace."""

    code = "INTERNAL"

"""What can go wrong between a sandbox and its network."""

from winpod.windows.errors import NotFound, Unavailable, WinpodError


class NoNetwork(WinpodError):
    """No CNI configuration, or one that cannot be understood: no pod can be connected."""

    code = "FAILED_PRECONDITION"


class PluginMissing(WinpodError):
    """A configuration names a plugin that is not installed."""

    code = "FAILED_PRECONDITION"


class PluginFailed(WinpodError):
    """A plugin ran, and said no."""


class PluginTimedOut(WinpodError):
    code = "DEADLINE_EXCEEDED"


class PluginNotReady(Unavailable):
    """The plugin says of itself that it cannot connect pods now."""


class AddressesExhausted(WinpodError):
    code = "RESOURCE_EXHAUSTED"


class NetworkConflict(WinpodError):
    """What the configuration asks for is taken by something else on this machine."""

    code = "FAILED_PRECONDITION"


class CacheUnwritable(WinpodError):
    """What is not written down is not begun."""

    code = "RESOURCE_EXHAUSTED"


class AlreadyConnected(WinpodError):
    code = "ALREADY_EXISTS"


class NotConnected(NotFound):
    """Nothing is known of a connection of this sandbox."""


class NotListening(Unavailable):
    """Nobody took a connection to a port of a sandbox."""

    def __init__(self, sandbox: str, port: int, reason: str) -> None:
        super().__init__(f'failed to connect to localhost:{port} for pod "{sandbox}": {reason}.')


class NamespaceFailed(WinpodError):
    """The kernel did not make, enter or remove a network namespace."""

    code = "INTERNAL"

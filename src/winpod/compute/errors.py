"""What can go wrong between a container and the program in it."""

from winpod.windows.errors import Unavailable, WinpodError


class AgentGone(Unavailable):
    """The shell of a container has ended, or is not there yet."""


class AgentMisspoke(WinpodError):
    """The other end of a shell's socket does not keep to the protocol."""

    code = "INTERNAL"


class NativeMissing(WinpodError):
    """A program of winpod's own is not where the package has it."""

    code = "FAILED_PRECONDITION"


class WindowsError(WinpodError):
    """Windows refused: its number, and its sentence."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence or f"Windows error {number}.")
        self.number = number


class ShellFailed(WinpodError):
    """The container that programs were to run in did not come up, or could not be changed."""

    def __init__(self, said: str) -> None:
        super().__init__(f"the container's Windows did not start: {said or 'it said nothing'}.")


class StartRefused(WinpodError):
    """Windows did not start the program; the sentence is its own."""

    def __init__(self, said: str) -> None:
        super().__init__(f"hcs::System::CreateProcess: {said}")

"""What can go wrong between a container and the program in it."""

import os
from collections.abc import Sequence

from winpod.windows.errors import Unavailable, WinpodError


class AgentGone(Unavailable):
    """The shell of a container has ended, or is not there yet."""


class AgentMisspoke(WinpodError):
    """The other end of a shell's socket does not keep to the protocol."""

    code = "INTERNAL"


class NotReady(WinpodError):
    """Something that every container needs is not on this machine."""

    code = "FAILED_PRECONDITION"

    def __init__(self, why: str) -> None:
        super().__init__(f"no container can be made: {why}")


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


class MemoryInUse(WinpodError):
    """A container is to have less memory than it uses."""

    code = "INVALID_ARGUMENT"

    def __init__(self, limit: int, used: int) -> None:
        super().__init__(
            f"the memory limit of {limit >> 20} MiB is less than what the container's Windows uses "
            f"already, {used >> 20} MiB.",
            "Give it more: 64 MiB are enough for a small program.",
        )


class StartRefused(WinpodError):
    """Windows did not start the program; the sentence is its own."""

    def __init__(self, said: str) -> None:
        super().__init__(f"hcs::System::CreateProcess: {said}")


class LogNotReopened(WinpodError):
    """A log that was moved away is still the one that is written."""

    code = "FAILED_PRECONDITION"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"The log {path} is not opened again: {why}.", "Put the one that was moved back."
        )


class PipeRefused(WinpodError):
    """A named pipe that leads out of a container was not made in it."""

    code = "FAILED_PRECONDITION"

    def __init__(self, said: str) -> None:
        super().__init__(f"the container's named pipes cannot be made: {said.rstrip('.')}.")


class DiskFailed(WinpodError):
    """The container's own disk could not be made."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, said: str) -> None:
        super().__init__(
            f"the container's disk cannot be made: {said}.",
            "It needs mkfs.ext4, a loop device, and room on the machine's disk.",
        )


class MountFailed(WinpodError):
    """Something of this machine could not be mounted into a container."""

    code = "INVALID_ARGUMENT"

    def __init__(self, source: str, destination: str, error: OSError) -> None:
        super().__init__(
            f'failed to mount "{source}" on "{destination}": {error.strerror or error}.'
        )


class KitFailed(WinpodError):
    """QEMU or a guest's kernel could not be had."""

    code = "FAILED_PRECONDITION"

    def __init__(self, why: str) -> None:
        super().__init__(f"hypervisor isolation is not ready: {why}.")


class MachineFailed(WinpodError):
    """A pod's microVM could not be made or changed."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the pod's microVM: {why}.")


class GuestTooSmall(WinpodError):
    """More is asked of a pod's microVM than this machine can give it."""

    code = "OUT_OF_RANGE"

    def __init__(self, memory: int, processors: int, most_memory: int, most: int) -> None:
        asked = " and ".join(
            words
            for number, words in (
                (memory, f"{memory >> 20} MiB of memory"),
                (processors, f"{processors} processors"),
            )
            if number
        )
        super().__init__(
            f"the pod's microVM would need {asked}, and can have {most_memory >> 20} MiB and "
            f"{most} processors here.",
            "Ask for less, or run the pod on a larger machine.",
        )


class MachineGone(Unavailable):
    """A pod's microVM has ended, or says nothing any more."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the pod's microVM: {why}.")


class GuestRefused(WinpodError):
    """The guest's kernel said no; `number` is its error."""

    def __init__(self, number: int, words: Sequence[str]) -> None:
        self.number = number
        asked = " ".join(words)[:200]
        super().__init__(f"the pod's microVM refused to {asked}: {os.strerror(number)}.")

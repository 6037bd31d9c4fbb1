"""Errors of containers, silos and microVMs."""

import os
from collections.abc import Sequence

from winpod.errors import Unavailable, WinpodError


class AgentUnavailable(Unavailable):
    """The silo of a container has ended, or has not started yet."""


class AgentProtocolError(WinpodError):
    """The agent violated the protocol."""

    code = "INTERNAL"


class PrerequisiteMissing(WinpodError):
    """The host lacks something that every container needs."""

    code = "FAILED_PRECONDITION"

    def __init__(self, reason: str) -> None:
        super().__init__(f"no container can be created: {reason}")


class Unsupported(WinpodError):
    """The host does not meet the requirements of winpod."""

    code = "FAILED_PRECONDITION"

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(
            f"No container can run on this host: {found}.", f"{remedy} See winpod doctor."
        )


class NativeMissing(WinpodError):
    """A native program is missing from the installed package."""

    code = "FAILED_PRECONDITION"


class WindowsError(WinpodError):
    """Windows refused a request: the error number, and its message."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message or f"Windows error {number}.")
        self.number = number


class SiloFailed(WinpodError):
    """The silo of a container did not boot, or could not be changed."""

    def __init__(self, output: str) -> None:
        super().__init__(f"the container's Windows did not start: {output or 'no output'}.")


class MemoryInUse(WinpodError):
    """A container's memory limit is below its usage."""

    code = "INVALID_ARGUMENT"

    def __init__(self, limit: int, used: int) -> None:
        super().__init__(
            f"the memory limit of {limit >> 20} MiB is less than the container's Windows already "
            f"uses, {used >> 20} MiB.",
            "Increase the limit; 64 MiB are enough for a small program.",
        )


PROGRAM_NOT_FOUND, PROGRAM_NOT_EXECUTABLE = "ProgramNotFound", "ProgramNotExecutable"
_NOT_FOUND_SENTENCES = {
    2: "The system cannot find the file specified.",
    3: "The system cannot find the path specified.",
}
"""Windows' error numbers of missing programs and directories, with their messages."""


def program_start_reason(number: int) -> str:
    """Return the reason for the Windows error number of a program that did not start."""
    return PROGRAM_NOT_FOUND if number in _NOT_FOUND_SENTENCES else PROGRAM_NOT_EXECUTABLE


class ProgramStartFailed(WinpodError):
    """Windows did not start the program; the message is its own.

    The reason is derived from the message, because conmon passes on only the text that wproxy
    prints, without Windows' error number.
    """

    def __init__(self, message: str) -> None:
        is_missing = any(sentence in message for sentence in _NOT_FOUND_SENTENCES.values())
        super().__init__(
            f"hcs::System::CreateProcess: {message}",
            reason=PROGRAM_NOT_FOUND if is_missing else PROGRAM_NOT_EXECUTABLE,
        )


class LogNotReopened(WinpodError):
    """A rotated log is still the file that is written to."""

    code = "FAILED_PRECONDITION"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"The log {path} was not reopened: {reason}.", "Move the old file back.")


class NamedPipeFailed(WinpodError):
    """A named pipe could not be created in a container."""

    code = "FAILED_PRECONDITION"

    def __init__(self, output: str) -> None:
        super().__init__(f"the container's named pipes cannot be created: {output.rstrip('.')}.")


class DiskFailed(WinpodError):
    """The container's scratch disk could not be created."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, output: str) -> None:
        super().__init__(
            f"the container's disk cannot be created: {output}.",
            "It needs mkfs.ext4, a loop device, and free space on the host's disk.",
        )


class MountFailed(WinpodError):
    """A path of the host could not be mounted into a container."""

    code = "INVALID_ARGUMENT"

    def __init__(self, source: str, destination: str, error: OSError) -> None:
        super().__init__(
            f'failed to mount "{source}" on "{destination}": {error.strerror or error}.'
        )


class HypervisorAssetsFailed(WinpodError):
    """QEMU or the guest's kernel is missing or could not be downloaded."""

    code = "FAILED_PRECONDITION"

    def __init__(self, reason: str) -> None:
        super().__init__(f"hypervisor isolation is not ready: {reason}.")


class MicroVmFailed(WinpodError):
    """A pod's microVM could not be created or changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the pod's microVM: {reason}.")


class MicroVmTooLarge(WinpodError):
    """A pod's microVM needs more than the host can provide."""

    code = "OUT_OF_RANGE"

    def __init__(self, memory: int, processors: int, max_memory: int, max_processors: int) -> None:
        needed = " and ".join(
            text
            for number, text in (
                (memory, f"{memory >> 20} MiB of memory"),
                (processors, f"{processors} processors"),
            )
            if number
        )
        super().__init__(
            f"the pod's microVM would need {needed}, but this host allows {max_memory >> 20} MiB "
            f"and {max_processors} processors.",
            "Request less, or run the pod on a larger node.",
        )


class MicroVmGone(Unavailable):
    """A pod's microVM has ended, or does not respond."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the pod's microVM: {reason}.")


class GuestError(WinpodError):
    """The guest's kernel refused a command; `number` is its errno."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        text = " ".join(command)[:200]
        super().__init__(f"the pod's microVM refused to {text}: {os.strerror(number)}.")

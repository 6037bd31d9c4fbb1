"""What can go wrong between an instance and the node it should be."""

from __future__ import annotations

from collections.abc import Sequence

from winpod.instances.rules.steps import Step
from winpod.windows.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError


class InstanceUnfit(WinpodError):
    """No step would make a node of this machine."""

    code = "FAILED_PRECONDITION"


class DowngradeRefused(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, installed: str, wanted: str) -> None:
        super().__init__(
            f"the instance has version {installed}, and {wanted} is older.",
            f"Use a payload of version {installed} or later, or remove the instance first.",
        )


class BadPayload(InvalidInput):
    """The files to install are not what they are said to be."""


class BadConfiguration(InvalidInput):
    """A configuration that the program it is for would not take, or would take and not follow."""


class Unreachable(Unavailable):
    """Nobody answered at the instance's address, or not in time."""


class LoginRefused(PermissionDenied):
    """The instance does not take this user with this key."""


class HostKeyChanged(PermissionDenied):
    """Another machine answers, or the instance was made anew."""


NOT_REACHED = (Unreachable, LoginRefused, HostKeyChanged)


class Busy(WinpodError):
    """Somebody else works on the instance."""

    code = "ABORTED"

    def __init__(self, instance: str, who: str, since: str) -> None:
        super().__init__(
            f"{instance}: {who} works on it, since {since}.",
            "Wait until that is over; who was cut off is waited for no longer than two minutes.",
        )


class StepFailed(WinpodError):
    """A step was done, and the instance is still as if it had not been."""

    code = "ABORTED"

    def __init__(self, instance: str, step: Step, found: str, advice: str) -> None:
        super().__init__(
            f"{instance}: could not {step.title}: expected {step.expected}, found {found}.", advice
        )
        self.instance = instance
        self.step = step


class ContainerdNotRunning(StepFailed):
    """The service on which all others depend did not start, or did not stay."""

    def __init__(
        self, instance: str, step: Step, found: str, said: str, log: Sequence[str]
    ) -> None:
        super().__init__(instance, step, found, "")
        wrote = " | ".join(log) or "nothing"
        self.sentence = (
            f"{instance}: containerd is not running: expected {step.expected}, found {found} "
            f"({said}). Its log ends with: {wrote}"
        )
        self.advice = (
            "Mend what the log tells; `winpod instance gather` collects it with all others. Then "
            "run the same again."
        )

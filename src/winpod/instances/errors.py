"""Errors of configuring an instance as a node."""

from __future__ import annotations

from collections.abc import Sequence

from winpod.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError
from winpod.instances.planner.steps import Step


def with_instance(name: str, message: str) -> str:
    """Prefix a message with the instance, unless it has the prefix. Some errors concern all."""
    prefix = f"{name}: "
    return message if message.startswith(prefix) else prefix + message


class InstanceUnsuitable(WinpodError):
    """The machine cannot become a node, whatever steps are taken."""

    code = "FAILED_PRECONDITION"
    reason = "InstanceUnfit"


class DowngradeRefused(WinpodError):
    code = "FAILED_PRECONDITION"
    reason = "InstanceDowngradeRefused"

    def __init__(self, installed: str, requested: str) -> None:
        super().__init__(
            f"the instance has version {installed}, and {requested} is older.",
            f"Use a payload of version {installed} or later, or remove the instance first.",
        )


class InvalidPayload(InvalidInput):
    """The files to install do not match the payload's list."""

    reason = "InstancePayloadBad"


class InvalidConfiguration(InvalidInput):
    """A configuration that the program would reject, or accept and ignore."""

    reason = "InstanceSettingsBad"


class InstanceUnreachable(Unavailable):
    """The instance did not answer, or not in time."""


class LoginRefused(PermissionDenied):
    """The instance rejects this user with this key."""

    reason = "InstanceLoginRefused"


class HostKeyChanged(PermissionDenied):
    """The host key differs: another machine answers, or the instance was reinstalled."""

    reason = "InstanceHostKeyChanged"


CONNECT_ERRORS = (InstanceUnreachable, LoginRefused, HostKeyChanged)


class InstanceBusy(WinpodError):
    """Another process works on the instance."""

    code = "ABORTED"

    def __init__(self, instance: str, holder: str, since: str) -> None:
        super().__init__(
            f"{instance}: locked by {holder} since {since}.",
            "Wait until it has finished; a lock that is not renewed expires after two minutes.",
        )


class StepFailed(WinpodError):
    """A step was executed, and the instance still needs it."""

    code = "ABORTED"
    reason = "InstanceStepFailed"

    def __init__(self, instance: str, step: Step, found: str, advice: str) -> None:
        super().__init__(
            f"{instance}: could not {step.title}: expected {step.expected}, found {found}.", advice
        )
        self.instance = instance
        self.step = step


class ContainerdNotRunning(StepFailed):
    """containerd did not start, or did not keep running; all other services depend on it."""

    def __init__(
        self, instance: str, step: Step, found: str, output: str, log: Sequence[str]
    ) -> None:
        super().__init__(instance, step, found, "")
        log_tail = " | ".join(log) or "nothing"
        self.message = (
            f"{instance}: containerd is not running: expected {step.expected}, found {found} "
            f"({output}). Its log ends with: {log_tail}"
        )
        self.hint = (
            "Fix the cause in the log; `winpod instance gather` collects all logs. Then run the "
            "command again."
        )

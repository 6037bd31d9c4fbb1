"""What is told about instances: phases, conditions, and the events of each transition: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from winpod.cluster.custom_resources import API_VERSION, Condition, condition
from winpod.instances import errors
from winpod.instances.cluster.inputs import INSTANCES, BadEntry
from winpod.instances.cluster.resource import KIND, WindowsInstance
from winpod.node.event_series import Event, Subject
from winpod.windows.errors import WinpodError


class Phase(StrEnum):
    PENDING = "Pending"
    CONFIGURING = "Configuring"
    JOINING = "Joining"
    READY = "Ready"
    WAITING = "Waiting"
    DRAINING = "Draining"
    CHANGING = "Changing"
    REPLACING = "Replacing"
    REMOVING = "Removing"
    FAILED = "Failed"


REACHABLE, CONFIGURED = "Reachable", "Configured"
CONTAINERD_RUNNING, NODE_READY, ENTRY_GOOD = "ContainerdRunning", "NodeReady", "EntryUnderstood"
CONTAINERD_NOT_RUNNING = "ContainerdNotRunning"
_REASONS: Mapping[type[WinpodError], str] = {
    errors.Unreachable: "InstanceUnreachable",
    errors.LoginRefused: "InstanceLoginRefused",
    errors.HostKeyChanged: "InstanceHostKeyChanged",
    errors.DowngradeRefused: "InstanceDowngradeRefused",
    errors.InstanceUnfit: "InstanceUnfit",
    errors.BadPayload: "InstancePayloadBad",
    errors.BadConfiguration: "InstanceSettingsBad",
    errors.ContainerdNotRunning: CONTAINERD_NOT_RUNNING,
    errors.StepFailed: "InstanceStepFailed",
}
_FAILED = "InstanceFailed"


def reason_of(error: WinpodError) -> str:
    return next((name for kind, name in _REASONS.items() if isinstance(error, kind)), _FAILED)


def event_of(instance: WindowsInstance, reason: str, message: str, *, is_bad: bool) -> Event:
    metadata = instance.metadata
    subject = Subject(KIND, metadata.namespace, metadata.name, metadata.uid, "", "", API_VERSION)
    return Event(subject, "Warning" if is_bad else "Normal", reason, message)


def bad_entry(namespace: str, bad: BadEntry) -> Event:
    subject = Subject("ConfigMap", namespace, INSTANCES, "")
    return Event(subject, "Warning", "InstanceEntryBad", bad.problem)


def with_condition(
    conditions: Iterable[Condition],
    kind: str,
    holds: bool | None,
    reason: str,
    message: str,
    now: datetime,
) -> list[Condition]:
    """In place of what was said of that kind."""
    new = condition(conditions, kind, holds, reason, message, now)
    return sorted((*(c for c in conditions if c.type != kind), new), key=lambda c: c.type)


def condition_of(conditions: Iterable[Condition], kind: str) -> str:
    return next((one.status for one in conditions if one.type == kind), "")

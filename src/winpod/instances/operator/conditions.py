"""Phases, conditions and events of instances: pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from winpod.errors import WinpodError
from winpod.instances import errors
from winpod.instances.cluster.inventory import InvalidEntry
from winpod.instances.cluster.resource import KIND, WindowsInstance
from winpod.k8s.crd import API_VERSION, updated_condition
from winpod.k8s.event_recorder import Event, ObjectReference
from winpod.k8s.objects import Condition
from winpod.labels import INSTANCES_CONFIG_MAP


class InstancePhase(StrEnum):
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
CONTAINERD_NOT_RUNNING = errors.ContainerdNotRunning.reason
_WITH_REASON = (
    *errors.CONNECT_ERRORS,
    errors.DowngradeRefused,
    errors.InstanceUnsuitable,
    errors.InvalidPayload,
    errors.InvalidConfiguration,
    errors.StepFailed,
)
"""Errors whose reason is a reason of conditions and events."""
_FAILED = "InstanceFailed"


def reason_of(error: WinpodError) -> str:
    return error.reason if isinstance(error, _WITH_REASON) else _FAILED


def instance_event(instance: WindowsInstance, reason: str, message: str, *, is_bad: bool) -> Event:
    metadata = instance.metadata
    subject = ObjectReference(
        KIND, metadata.namespace, metadata.name, metadata.uid, "", "", API_VERSION
    )
    return Event(subject, "Warning" if is_bad else "Normal", reason, message)


def invalid_entry_event(namespace: str, bad: InvalidEntry) -> Event:
    subject = ObjectReference("ConfigMap", namespace, INSTANCES_CONFIG_MAP, "")
    return Event(subject, "Warning", "InstanceEntryBad", bad.problem)


def with_condition(
    conditions: Iterable[Condition],
    kind: str,
    holds: bool | None,
    reason: str,
    message: str,
    now: datetime,
) -> list[Condition]:
    """Replace the condition of this type."""
    new = updated_condition(conditions, kind, holds, reason, message, now)
    return sorted((*(c for c in conditions if c.type != kind), new), key=lambda c: c.type)


def find_condition(conditions: Iterable[Condition], kind: str) -> str:
    return next((condition.status for condition in conditions if condition.type == kind), "")

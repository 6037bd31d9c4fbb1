"""What winpod's custom resources have alike: a group, metadata and conditions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from lightkube.core.dictmixin import DictMixin

GROUP, VERSION = "winpod.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Metadata(DictMixin, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    finalizers: list[str] = msgspec.field(default_factory=list)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class CustomResource(DictMixin, rename="camel", omit_defaults=False):
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_leaving(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


class Condition(DictMixin, rename="camel"):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


def condition(
    known: Iterable[Condition],
    kind: str,
    holds: bool | None,
    reason: str,
    message: str,
    now: datetime,
) -> Condition:
    """With the time since when it is so, as those `known` say; None is that nobody knows."""
    status = "Unknown" if holds is None else str(holds)
    before = next((one for one in known if one.type == kind), None)
    since = before.last_transition_time if before and before.status == status else stamp(now)
    return Condition(kind, status, reason, message, since)


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"

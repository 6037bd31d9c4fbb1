"""Slim models of the object fields that instances read, for any kind."""

from __future__ import annotations

import msgspec
from lightkube.core.dictmixin import DictMixin


class Owner(DictMixin):
    kind: str = ""
    name: str = ""


class Metadata(DictMixin, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[Owner] = msgspec.field(default_factory=list)
    creation_timestamp: str = ""
    deletion_timestamp: str = ""


class Address(DictMixin):
    type: str = ""
    address: str = ""

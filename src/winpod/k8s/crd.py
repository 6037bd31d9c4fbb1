"""Building blocks of winpod's custom resources: metadata, conditions, schemas and definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from winpod.clock import format_timestamp
from winpod.k8s.objects import Condition, ObjectMeta, SlimStruct
from winpod.labels import API_GROUP

VERSION = "v1alpha1"
API_VERSION = f"{API_GROUP}/{VERSION}"


class CustomResource(SlimStruct, omit_defaults=False):
    metadata: ObjectMeta

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


def updated_condition(
    conditions: Iterable[Condition],
    kind: str,
    holds: bool | None,
    reason: str,
    message: str,
    now: datetime,
) -> Condition:
    """Return a condition that keeps its transition time if the status is unchanged.

    `holds` is None for status Unknown.
    """
    status = "Unknown" if holds is None else str(holds)
    before = next((condition for condition in conditions if condition.type == kind), None)
    since = (
        before.last_transition_time if before and before.status == status else format_timestamp(now)
    )
    return Condition(kind, status, reason, message, since)


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS = {"type": "array", "items": TEXT}


def string_schema(description: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "description": description, **more}


def string_fields(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, TEXT)


def object_list_schema(required: list[str], **properties: Any) -> dict[str, Any]:
    item = {"type": "object", "required": required, "properties": properties}
    return {"type": "array", "items": item}


CONDITIONS = object_list_schema(
    ["type", "status"],
    **string_fields("type", "status", "reason", "message", "lastTransitionTime"),
)


def custom_resource_definition(
    kind: str,
    scope: Literal["Namespaced", "Cluster"],
    *,
    plural: str,
    short: str,
    columns: Mapping[str, str],
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a CustomResourceDefinition.

    `columns` maps titles of printer columns to JSON paths; the age is added.
    """
    printer_columns = [_column(title, "string", path) for title, path in columns.items()]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        *printer_columns,
                        _column("Age", "date", ".metadata.creationTimestamp"),
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {"spec": spec, "status": status},
                        }
                    },
                }
            ],
        },
    }


def _column(title: str, kind: str, path: str) -> dict[str, str]:
    return {"name": title, "type": kind, "jsonPath": path}

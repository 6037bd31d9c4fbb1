"""How a custom resource of winpod's is defined to an API server: the whole, and its pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from winpod.cluster.custom_resources import GROUP, VERSION

TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TEXTS = {"type": "array", "items": TEXT}


def text(description: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "description": description, **more}


def text_fields(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, TEXT)


def objects(required: list[str], **properties: Any) -> dict[str, Any]:
    item = {"type": "object", "required": required, "properties": properties}
    return {"type": "array", "items": item}


CONDITIONS = objects(
    ["type", "status"],
    **text_fields("type", "status", "reason", "message", "lastTransitionTime"),
)


def definition(
    kind: str,
    scope: Literal["Namespaced", "Cluster"],
    *,
    plural: str,
    short: str,
    columns: Mapping[str, str],
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
) -> dict[str, Any]:
    """`columns` is what a list shows, by title, before the age."""
    shown = [_column(title, "string", path) for title, path in columns.items()]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
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
                        *shown,
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

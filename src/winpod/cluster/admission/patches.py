"""What is added to a pod, as JSON Patch. Nothing is replaced and nothing removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from winpod.cluster.admission.choosing import Choice
from winpod.windows.objects import Toleration

UNCHECKED = "winpod.dev/unchecked"
"""The annotation of a pod that was let in although its images could not be looked up."""

Patch = Mapping[str, Any]


def patches_for(
    obj: Mapping[str, Any], choice: Choice, problems: Sequence[str]
) -> tuple[Patch, ...]:
    """`problems` are why its images are not known."""
    spec, metadata = obj["spec"], obj.get("metadata") or {}
    return (
        *((_add("/spec/runtimeClassName", choice.runtime_class),) if choice.runtime_class else ()),
        *_add_members(spec, "/spec/nodeSelector", dict(choice.node_selector)),
        *_add_tolerations(spec, choice.tolerations),
        *_add_members(
            metadata, "/metadata/annotations", {UNCHECKED: " ".join(problems)} if problems else {}
        ),
    )


def _add(path: str, value: Any) -> Patch:
    return {"op": "add", "path": path, "value": value}


def _add_members(
    holder: Mapping[str, Any], path: str, members: Mapping[str, str]
) -> Iterator[Patch]:
    if not holder.get(path.rpartition("/")[2]):
        if members:
            yield _add(path, dict(members))
        return
    for key, value in members.items():
        yield _add(f"{path}/{key.replace('~', '~0').replace('/', '~1')}", value)


def _add_tolerations(spec: Mapping[str, Any], tolerations: Sequence[Toleration]) -> Iterator[Patch]:
    added = [one.to_object() for one in tolerations]
    if spec.get("tolerations"):
        yield from (_add("/spec/tolerations/-", one) for one in added)
    elif added:
        yield _add("/spec/tolerations", added)

"""How much of a pod is looked at: what real pods say is far below it, and looking takes its time.

Whoever may create pods could keep the operator busy for minutes by one that selects nodes by
thousands of labels, while pods of others are let in unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from winpod.windows.errors import InvalidInput
from winpod.windows.reading import At

MOST: Mapping[str, int] = {
    "containers": 100,
    "resources that they ask for": 50,
    "labels in its nodeSelector": 100,
    "words in its node affinity": 1000,
    "tolerations": 200,
    "pull secrets": 50,
}
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def too_much(template: Mapping[str, Any]) -> str:
    """What a pod has too much of, as a sentence; empty for those that are looked at."""
    try:
        for (what, most), parts in zip(MOST.items(), _parts(At(template).get("spec")), strict=True):
            if len(list(islice(parts, most + 1))) > most:
                return f"it has more than {most} {what}, and such pods are not looked at."
    except InvalidInput:
        return ""  # which is the API server's to say
    return ""


def _parts(spec: At) -> Iterator[Iterable[object]]:
    """In the order of the table."""
    containers = [one for name in _CONTAINERS for one in _held(spec, name)]
    yield containers
    yield frozenset(_resources((*containers, spec.value)))
    yield _held(spec, "nodeSelector")
    yield _words(spec.get(*_AFFINITY).value)
    yield _held(spec, "tolerations")
    yield _held(spec, "imagePullSecrets")


def _held(at: At, *steps: str) -> Collection[Any]:
    value = at.get(*steps).value
    return value if isinstance(value, dict | list) else ()


def _resources(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        for name in ("requests", "limits"):
            yield from map(str, _held(At(part), "resources", name))


def _words(value: object) -> Iterator[object]:
    left = [value]
    while left:
        match left.pop():
            case dict(members):
                left.extend(members.values())
            case list(items):
                left.extend(items)
            case word:
                yield word

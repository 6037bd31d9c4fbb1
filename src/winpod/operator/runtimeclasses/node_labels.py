"""The labels that the operator sets on Windows nodes. Pure.

`node.kubernetes.io/windows-build` is normally set by the kubelet; if it is missing, the operator
sets it from the kernel version, and records that in an annotation to keep it up to date. The other
labels are winpod's own: the isolation of a node, and the handlers its runtime can serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from winpod.field_reader import TextPairs
from winpod.labels import BUILD_LABEL, HANDLER_LABEL_PREFIX, ISOLATION_LABEL
from winpod.placement.model import Node, Pod
from winpod.placement.predicates import AdmittedPod
from winpod.placement.start_checks import check_start
from winpod.windows.builds import RELEASES, Build, parse_version
from winpod.windows.handlers import BUILTIN_HANDLERS, HYPERVISOR_HANDLER, PROCESS_HANDLER, Handler

LABEL_TRUE = "true"


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Labels to set, or to remove if None, and the filled-in labels afterwards."""

    labels: tuple[tuple[str, str | None], ...] = ()
    filled_in: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.labels)


def change_labels(node: Node, filled: frozenset[str] = frozenset()) -> LabelChange:
    """Return the label changes; `filled` are the labels the operator filled in before."""
    current, desired = dict(node.labels), dict(_own_labels(node))
    kernel = parse_version(node.kernel_version) if node.os == "windows" else None
    is_managed = BUILD_LABEL in filled or BUILD_LABEL not in current
    if kernel and is_managed:
        desired[BUILD_LABEL] = str(kernel.base)
    stale = {key for key in current if _is_own(key) or (key == BUILD_LABEL and key in filled)}
    changes = {key: value for key, value in desired.items() if current.get(key) != value}
    return LabelChange(
        tuple(sorted((changes | dict.fromkeys(stale - desired.keys())).items())),
        frozenset((BUILD_LABEL,)) if kernel and is_managed else frozenset(),
    )


def with_labels(node: Node, change: LabelChange) -> Node:
    """Return the node after the change."""
    if not change:
        return node
    labels = dict(node.labels) | dict(change.labels)
    kept = tuple(sorted((key, value) for key, value in labels.items() if value is not None))
    return replace(node, labels=kept)


def handler_label(handler: str) -> str:
    return HANDLER_LABEL_PREFIX + handler


def served_handlers(node: Node) -> frozenset[str]:
    """Return the handlers that can start: process, hypervisor, older guests and their sizes.

    Guest handlers must be advertised by the node; process isolation is assumed.
    """
    return _served(node.os, node.build, node.runtime, node.handlers)


@lru_cache(maxsize=1024)
def _served(
    os: str, build: Build | None, runtime: str, handlers: frozenset[str] | None
) -> frozenset[str]:
    if os != "windows" or build is None:
        return frozenset()
    node = Node("", reported_os=os, kernel_version=str(build), runtime=runtime, handlers=handlers)
    advertised = handlers or frozenset()
    return frozenset(
        handler.name
        for handler in (
            PROCESS_HANDLER,
            HYPERVISOR_HANDLER,
            *_older_guests(build),
            *_sizes(advertised),
        )
        if (handler is PROCESS_HANDLER or handler.name in advertised) and _starts(handler, node)
    )


def _older_guests(host: Build) -> Iterable[Handler]:
    for release in RELEASES:
        if release.runs_pods and release.build < host:
            yield BUILTIN_HANDLERS.get(f"{HYPERVISOR_HANDLER.name}-{release.build.number}")


def _sizes(advertised: Iterable[str]) -> Iterable[Handler]:
    """Yield configured handlers whose names extend a hypervisor handler."""
    for name in advertised:
        handler = BUILTIN_HANDLERS.resolve_advertised(name)
        if BUILTIN_HANDLERS.size_suffix(name) and handler.isolation is HYPERVISOR_HANDLER.isolation:
            yield handler


def _starts(handler: Handler, node: Node) -> bool:
    """Whether placement lets a minimal pod with this handler start on the node."""
    start = check_start(AdmittedPod(Pod((), os="windows"), handler.name), node, {})
    return not start.reasons and not start.unknown


def isolation_of(node: Node) -> str:
    """`process`, `process-hypervisor`, or empty if neither can start."""
    served = served_handlers(node)
    supported = (
        (PROCESS_HANDLER.isolation, PROCESS_HANDLER.name in served),
        (HYPERVISOR_HANDLER.isolation, bool(served - {PROCESS_HANDLER.name})),
    )
    return "-".join(isolation for isolation, is_supported in supported if is_supported)


def _own_labels(node: Node) -> TextPairs:
    isolation = isolation_of(node)
    if not isolation:
        return ()
    handlers = ((handler_label(name), LABEL_TRUE) for name in served_handlers(node))
    return ((ISOLATION_LABEL, isolation), *handlers)


def _is_own(key: str) -> bool:
    return key == ISOLATION_LABEL or key.startswith(HANDLER_LABEL_PREFIX)

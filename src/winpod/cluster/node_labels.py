"""Labels that Windows nodes should have and lack: pure.

`node.kubernetes.io/windows-build` is a kubelet's to write; where none does, it is filled in from
the kernel's version, and noted as filled in so that it can follow the kernel. The others are
winpod's own: which isolation a node can give, and which handlers its runtime can really serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from winpod.windows.builds import RELEASES, Build, parse_version
from winpod.windows.handlers import HYPERVISOR, KNOWN, PROCESS, Handler
from winpod.windows.objects import BUILD_LABEL, Node, Pod
from winpod.windows.reading import Pairs
from winpod.windows.scheduling import Admitted
from winpod.windows.starting import start_on

ISOLATION_LABEL = "winpod.dev/isolation"
HANDLER_PREFIX = "handler.winpod.dev/"
SERVED = "true"


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Labels to set, or to take away where None, and what is filled in afterwards."""

    labels: tuple[tuple[str, str | None], ...] = ()
    filled: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.labels)


def change_labels(node: Node, filled: frozenset[str] = frozenset()) -> LabelChange:
    """What to change; `filled` are the labels that were filled in before."""
    has, wanted = dict(node.labels), dict(_own_labels(node))
    kernel = parse_version(node.kernel_version) if node.os == "windows" else None
    is_ours = BUILD_LABEL in filled or BUILD_LABEL not in has
    if kernel and is_ours:
        wanted[BUILD_LABEL] = str(kernel.base)
    stale = {key for key in has if _is_own(key) or (key == BUILD_LABEL and key in filled)}
    changes = {key: value for key, value in wanted.items() if has.get(key) != value}
    return LabelChange(
        tuple(sorted((changes | dict.fromkeys(stale - wanted.keys())).items())),
        frozenset((BUILD_LABEL,)) if kernel and is_ours else frozenset(),
    )


def with_labels(node: Node, change: LabelChange) -> Node:
    """The node as it is after the change."""
    if not change:
        return node
    labels = dict(node.labels) | dict(change.labels)
    kept = tuple(sorted((key, value) for key, value in labels.items() if value is not None))
    return replace(node, labels=kept)


def handler_label(handler: str) -> str:
    return HANDLER_PREFIX + handler


def served_handlers(node: Node) -> frozenset[str]:
    """Process isolation, hypervisor isolation, older guests and their sizes: what really starts.

    A guest's handler must be told by the node; process isolation is believed of one that is silent.
    """
    return _served(node.os, node.build, node.runtime, node.handlers)


@lru_cache(maxsize=1024)
def _served(
    os: str, build: Build | None, runtime: str, handlers: frozenset[str] | None
) -> frozenset[str]:
    if os != "windows" or build is None:
        return frozenset()
    node = Node("", told_os=os, kernel_version=str(build), runtime=runtime, handlers=handlers)
    told = handlers or frozenset()
    return frozenset(
        handler.name
        for handler in (PROCESS, HYPERVISOR, *_guests_before(build), *_sizes(told))
        if (handler is PROCESS or handler.name in told) and _starts(handler, node)
    )


def _guests_before(host: Build) -> Iterable[Handler]:
    for release in RELEASES:
        if release.runs_pods and release.build < host:
            yield KNOWN.get(f"{HYPERVISOR.name}-{release.build.number}")


def _sizes(told: Iterable[str]) -> Iterable[Handler]:
    """Handlers that nodes have by their configuration, named after one of hypervisor isolation."""
    for name in told:
        handler = KNOWN.told(name)
        if KNOWN.size(name) and handler.isolation is HYPERVISOR.isolation:
            yield handler


def _starts(handler: Handler, node: Node) -> bool:
    """As placement decides it, of a pod that asks for nothing but the handler."""
    start = start_on(Admitted(Pod((), os="windows"), handler.name), node, {})
    return not start.reasons and not start.unknown


def isolation_of(node: Node) -> str:
    """`process`, `process-hypervisor`, or nothing where neither can start."""
    served = served_handlers(node)
    given = (
        (PROCESS.isolation, PROCESS.name in served),
        (HYPERVISOR.isolation, bool(served - {PROCESS.name})),
    )
    return "-".join(isolation for isolation, is_given in given if is_given)


def _own_labels(node: Node) -> Pairs:
    isolation = isolation_of(node)
    if not isolation:
        return ()
    handlers = ((handler_label(name), SERVED) for name in served_handlers(node))
    return ((ISOLATION_LABEL, isolation), *handlers)


def _is_own(key: str) -> bool:
    return key == ISOLATION_LABEL or key.startswith(HANDLER_PREFIX)

"""Tests of the labels that the operator sets on nodes."""

from typing import Any

import pytest

from tests.support.placement_nodes import CONTAINERD, WINPOD, linux_node, node
from winpod.labels import BUILD_LABEL
from winpod.operator.runtimeclasses.node_labels import change_labels, served_handlers, with_labels
from winpod.placement.model import Node
from winpod.windows.handlers import BUILTIN_HANDLERS, HYPERVISOR_HANDLER, PROCESS_HANDLER

ISOLATION = "winpod.dev/isolation"
FILLED = frozenset((BUILD_LABEL,))
BEFORE_2022 = {"17763", "18362", "18363", "19041", "19042", "19043"}
GUEST_2019 = f"{HYPERVISOR_HANDLER.name}-17763"


def bare(kernel: str, **more: Any) -> Node:
    """A node whose kubelet does not set the build label."""
    labels = (("kubernetes.io/arch", "amd64"), ("kubernetes.io/os", "windows"))
    more.setdefault("labels", labels)
    return Node("bare", kernel_version=kernel, handlers=frozenset((PROCESS_HANDLER.name,)), **more)


@pytest.mark.parametrize(
    ("kernel", "label", "filled", "written"),
    [
        ("10.0.17763.805", None, False, "10.0.17763"),
        ("10.0.17763.805", "10.0.17763", False, "10.0.17763"),
        ("10.0.20348.1", "10.0.17763", False, "10.0.17763"),
        ("10.0.20348.1", "10.0.17763", True, "10.0.20348"),
        ("", None, False, None),
        ("", "10.0.17763", True, None),
        ("6.1.0-linux", None, False, None),
    ],
)
def test_build_label_is_set_only_if_the_kubelet_did_not(
    kernel: str, label: str | None, filled: bool, written: str | None
) -> None:
    labels = [("kubernetes.io/os", "windows")]
    if label:
        labels.append((BUILD_LABEL, label))
    one = bare(kernel, labels=tuple(labels))
    change = change_labels(one, FILLED if filled else frozenset())
    assert with_labels(one, change).label(BUILD_LABEL) == written
    ours = written is not None and (label is None or filled)
    assert change.filled_in == (FILLED if ours else frozenset())


@pytest.mark.parametrize(
    ("build", "runtime", "handlers", "isolation"),
    [
        ("2022", "containerd", CONTAINERD, "process-hypervisor"),
        ("2022", "containerd", frozenset((PROCESS_HANDLER.name,)), "process"),
        ("2022", "containerd", frozenset((HYPERVISOR_HANDLER.name,)), "hypervisor"),
        ("2022", "containerd", None, "process"),
        ("2022", "docker", None, "process"),
        ("2022", "docker", CONTAINERD, "process"),
        ("2022", "winpod", WINPOD, "process-hypervisor"),
        ("2022", "winpod", frozenset((PROCESS_HANDLER.name, GUEST_2019)), "process-hypervisor"),
        ("2022", "containerd", frozenset((PROCESS_HANDLER.name, GUEST_2019)), "process"),
        ("2022", "containerd", frozenset(("my-own",)), None),
        ("2016", "containerd", CONTAINERD, None),
    ],
)
def test_node_is_labelled_with_its_isolation(
    build: str, runtime: str, handlers: frozenset[str] | None, isolation: str | None
) -> None:
    one = node("one", build, runtime=runtime, handlers=handlers)
    assert with_labels(one, change_labels(one)).label(ISOLATION) == isolation


@pytest.mark.parametrize(
    ("build", "runtime", "guests"),
    [
        ("2019", "winpod", set()),
        ("1903", "winpod", {"17763"}),
        ("2022", "winpod", {"17763", "18362", "18363", "19041", "19042", "19043"}),
        (
            "2025",
            "winpod",
            {"17763", "18362", "18363", "19041", "19042", "19043", "20348", "25398"},
        ),
        ("2025", "containerd", set()),
        ("2025", "docker", set()),
        ("2025", "", BEFORE_2022 | {"20348", "25398"}),
    ],
)
def test_only_older_guests_supported_by_the_runtime_are_served(
    build: str, runtime: str, guests: set[str]
) -> None:
    served = served_handlers(node("one", build, runtime=runtime, handlers=WINPOD))
    assert {name for name in served if BUILTIN_HANDLERS.get(name).guest} == {
        f"{HYPERVISOR_HANDLER.name}-{number}" for number in guests
    }


def test_unadvertised_handler_is_not_labelled() -> None:
    one = node("one", "2025", handlers=None)
    assert served_handlers(one) == {PROCESS_HANDLER.name}


def test_correct_labels_are_not_changed() -> None:
    one = bare("10.0.20348.1")
    change = change_labels(one)
    assert change
    assert not change_labels(with_labels(one, change), change.filled_in)


def test_outdated_labels_are_removed() -> None:
    one = node("one", "2022", handlers=WINPOD)
    capable = with_labels(one, change_labels(one))
    now = node(
        "one", "2022", runtime="containerd", handlers=CONTAINERD, labels=dict(capable.labels)
    )
    change = dict(change_labels(now).labels)
    assert change[f"handler.winpod.dev/{GUEST_2019}"] is None
    assert f"handler.winpod.dev/{PROCESS_HANDLER.name}" not in change


def test_linux_node_loses_windows_labels() -> None:
    assert not change_labels(linux_node("one"))
    left = {ISOLATION: "process", BUILD_LABEL: "10.0.17763", "kubernetes.io/os": "linux"}
    one = Node("one", tuple(sorted(left.items())), kernel_version="6.1.0", reported_os="linux")
    change = change_labels(one, FILLED)
    assert dict(change.labels) == {ISOLATION: None, BUILD_LABEL: None}
    assert not change.filled_in


def test_nodes_without_build_get_no_labels() -> None:
    silent = Node("one", (("kubernetes.io/os", "windows"),))
    assert not change_labels(silent)

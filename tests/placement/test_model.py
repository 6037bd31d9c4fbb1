"""Tests of decoding Kubernetes objects as the scheduler does, and of its errors."""

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.field_reader import InvalidField, format_path
from winpod.placement.model import (
    Node,
    NodeSelectorRequirement,
    Pod,
    RuntimeClass,
    Taint,
    Toleration,
)
from winpod.quantities import format_quantity, parse_quantity
from winpod.windows.builds import Build

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def pod(**spec: Any) -> Pod:
    return Pod.from_template({"spec": {"containers": [{"name": "c", "image": "app"}], **spec}})


def requests(**amounts: str) -> dict[str, Any]:
    return {"name": "c", "image": "app", "resources": {"requests": amounts}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"),
        ("100m", "0.1"),
        ("1.5Gi", "1610612736"),
        ("2e3", "2000"),
        ("1E", "1000000000000000000"),
        ("1Ei", "1152921504606846976"),
        (".5", "0.5"),
        ("5.", "5"),
        ("-1k", "-1000"),
        ("100u", "0.0001"),
        ("9" * 500, "9223372036854775807"),
        ("8Ei", "9223372036854775807"),
    ],
)
def test_quantities_are_exact(text: str, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "1GB", "Gi", "1 Gi", "1mi", "0x10", "1e", "--1", "9" * 1001])
def test_invalid_quantities_are_rejected(text: str) -> None:
    assert parse_quantity(text) is None


@pytest.mark.parametrize(
    ("resource", "text", "shown"),
    [
        ("cpu", "1500m", "1500m"),
        ("cpu", "2", "2"),
        ("memory", "1536Mi", "1.5Gi"),
        ("memory", "200Mi", "200Mi"),
        ("memory", "7935408Ki", "7749.4Mi"),
        ("memory", "1000000000", "953.6Mi"),
        ("memory", "5000", "5000"),
        ("cpu", "2500500u", "2500m"),
        ("memory", "0", "0"),
        ("pods", "110", "110"),
    ],
)
def test_quantities_are_formatted_with_suffixes(resource: str, text: str, shown: str) -> None:
    amount = parse_quantity(text)
    assert amount is not None
    assert format_quantity(resource, amount) == shown


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("os", "Equal", "windows"), True),
        (Toleration("os", "Equal", "Windows"), False),
        (Toleration("os", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal"), False),
        (Toleration("os", "Exists", effect="NoExecute"), False),
        (Toleration("os", "Exists", effect="NoSchedule"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("os", "Gt", "1"), False),
    ],
)
def test_tolerations_follow_the_scheduler(toleration: Toleration, tolerated: bool) -> None:
    assert toleration.tolerates(Taint("os", "windows", "NoSchedule")) == tolerated


def test_numeric_tolerations_compare_numbers() -> None:
    taint = Taint("sla", "950", "NoSchedule")
    assert Toleration("sla", "Gt", "900").tolerates(taint)
    assert not Toleration("sla", "Lt", "900").tolerates(taint)


@pytest.mark.parametrize(
    ("requirement", "value", "accepted"),
    [
        (NodeSelectorRequirement("k", "In", ("a", "b")), "a", True),
        (NodeSelectorRequirement("k", "In", ("a",)), None, False),
        (NodeSelectorRequirement("k", "NotIn", ("a",)), None, True),
        (NodeSelectorRequirement("k", "NotIn", ("a",)), "a", False),
        (NodeSelectorRequirement("k", "Exists"), "", True),
        (NodeSelectorRequirement("k", "Exists"), None, False),
        (NodeSelectorRequirement("k", "DoesNotExist"), None, True),
        (NodeSelectorRequirement("k", "Gt", ("5",)), "6", True),
        (NodeSelectorRequirement("k", "Gt", ("5",)), "five", False),
        (NodeSelectorRequirement("k", "Lt", ("5",)), "4", True),
        (NodeSelectorRequirement("k", "Lt", ("5",)), None, False),
    ],
)
def test_node_affinity_follows_the_scheduler(
    requirement: NodeSelectorRequirement, value: str | None, accepted: bool
) -> None:
    assert requirement.matches(value) == accepted


def test_pod_requests_cover_containers_and_largest_init_container() -> None:
    read = pod(
        containers=[requests(cpu="500m", memory="1Gi"), requests(cpu="500m", memory="1Gi")],
        initContainers=[
            {**requests(cpu="100m"), "restartPolicy": "Always"},
            requests(cpu="2", memory="512Mi"),
        ],
    )
    assert dict(read.requests) == {"cpu": Decimal("2.1"), "memory": Decimal(2 * 1024**3)}


def test_limit_is_the_default_request() -> None:
    container = {"name": "c", "image": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
    container["resources"]["requests"] = {"cpu": "1"}  # type: ignore[index]
    read = pod(containers=[container])
    assert dict(read.requests) == {"cpu": Decimal(1), "memory": Decimal(1024**3)}


@pytest.mark.parametrize(
    ("version", "narrowed"), [("1809", "10.0.17763"), ("10.0.17763.805", "10.0.17763.805")]
)
def test_annotations_constrain_the_platform(version: str, narrowed: str) -> None:
    annotations = {"winpod.dev/os-version": version, "kubernetes.io/os": "windows"}
    read = Pod.from_template(
        {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "a"}]},
        }
    )
    assert (read.platform_constraint.os, read.platform_constraint.os_version) == (
        "windows",
        narrowed,
    )


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ({}, "spec is required."),
        ({"spec": []}, "spec must be a mapping, and is a list."),
        ({"spec": {}}, "spec.containers must have at least one container."),
        ({"spec": {"containers": {}}}, "spec.containers must be a list, and is a mapping."),
        ({"spec": {"containers": [{}]}}, "spec.containers[0].image is required."),
        ({"spec": {"containers": [{"image": 5}]}}, "spec.containers[0].image must be text"),
        (
            {"spec": {"containers": [{"image": "a"}], "nodeSelector": {"a": True}}},
            "spec.nodeSelector.a must be text (put it in quotes), and is true or false.",
        ),
        (
            {"spec": {"containers": [{"image": "a", "resources": {"limits": {"cpu": "x"}}}]}},
            'resources.limits.cpu must be a quantity such as 500m or 2Gi, not "x"',
        ),
        (
            {"spec": {"containers": [{"image": "a", "resources": {"limits": {"cpu": -1}}}]}},
            'resources.limits.cpu must not be negative, and is "-1".',
        ),
        (
            {"spec": {"containers": [{"image": "a"}], "tolerations": [{"operator": "exists"}]}},
            'tolerations[0].operator is "exists", and must be one of Equal, Exists, Lt, Gt.',
        ),
        (
            {"spec": {"containers": [{"image": "a"}], "tolerations": [{"effect": "Never"}]}},
            'tolerations[0].effect is "Never", and must be one of NoSchedule, PreferNoSchedule,',
        ),
        (
            {
                "metadata": {"annotations": {"winpod.dev/os-version": "vista"}},
                "spec": {"containers": [{"image": "a"}]},
            },
            'metadata.annotations.winpod.dev/os-version is "vista", which is not a Windows build',
        ),
    ],
)
def test_errors_name_the_field(template: Any, sentence: str) -> None:
    with pytest.raises(InvalidField) as caught:
        Pod.from_template(template)
    assert sentence in str(caught.value)


def test_affinity_operators_are_checked() -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "Near"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    with pytest.raises(InvalidField, match='operator is "Near", and must be one of In, NotIn'):
        pod(affinity={"nodeAffinity": required})


@pytest.mark.parametrize("bound", ["²", "1" * 5000, "-", "+1", ""])
def test_a_bound_is_a_whole_number(bound: str) -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": [bound]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    with pytest.raises(InvalidField, match="must be one whole number for Gt"):
        pod(affinity={"nodeAffinity": required})
    assert not NodeSelectorRequirement("a", "Gt", ("1",)).matches(bound)
    assert not Toleration("a", "Lt", "5", "").tolerates(Taint("a", bound))


def test_a_resource_that_is_null_is_none() -> None:
    read = pod(containers=[{"image": "a", "resources": {"requests": {"cpu": None}}}])
    assert dict(read.requests) == {"cpu": 0}


@pytest.mark.parametrize(
    ("labels", "info", "system"),
    [
        ({}, {}, ("linux", "amd64")),
        ({}, {"operatingSystem": "windows", "architecture": "arm64"}, ("windows", "arm64")),
        ({"node.kubernetes.io/windows-build": "10.0.20348"}, {}, ("windows", "amd64")),
        ({"kubernetes.io/os": "linux"}, {"operatingSystem": "windows"}, ("linux", "amd64")),
    ],
)
def test_node_without_labels_uses_node_info(
    labels: dict[str, str], info: dict[str, str], system: tuple[str, str]
) -> None:
    node = Node.from_object(
        {"metadata": {"name": "n", "labels": labels}, "status": {"nodeInfo": info}}
    )
    assert (node.os, node.architecture) == system


def test_a_node_is_read_from_its_object() -> None:
    node = Node.from_object(
        {
            "metadata": {
                "name": "win",
                "labels": {"kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64"},
            },
            "spec": {"taints": [{"key": "os", "value": "windows", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi"},
                "runtimeHandlers": [{"name": ""}, {"name": "runhcs-wcow-process"}],
                "nodeInfo": {
                    "kernelVersion": "10.0.20348.2113",
                    "containerRuntimeVersion": "containerd://1.7.20",
                },
            },
        }
    )
    assert node.os == "windows"
    assert node.build == Build(10, 0, 20348)
    assert node.runtime == "containerd"
    assert node.handlers == frozenset({"runhcs-wcow-process"})
    assert [str(taint) for taint in node.taints] == ["os=windows:NoSchedule"]


def test_unreported_handlers_are_unknown_not_empty() -> None:
    for handlers in ([], [{"name": ""}], None):
        node = Node.from_object(
            {"metadata": {"name": "n"}, "status": {"runtimeHandlers": handlers}}
        )
        assert node.handlers is None


@pytest.mark.parametrize(
    ("labels", "kernel", "build"),
    [
        ({"node.kubernetes.io/windows-build": "10.0.17763"}, "", "10.0.17763"),
        ({"node.kubernetes.io/windows-build": "10.0.17763"}, "10.0.20348.1", "10.0.20348"),
        ({"beta.kubernetes.io/osversion": "Windows1809"}, "", "10.0.17763"),
        ({"beta.kubernetes.io/osversion": "dunno"}, "", "None"),
        ({}, "5.15.0-generic", "None"),
    ],
)
def test_node_build_is_from_kernel_then_labels(
    labels: dict[str, str], kernel: str, build: str
) -> None:
    node = Node("n", tuple(labels.items()), kernel_version=kernel)
    assert str(node.build) == build


def test_a_runtime_class_needs_a_handler() -> None:
    with pytest.raises(InvalidField, match="handler is required"):
        RuntimeClass.from_object({"metadata": {"name": "x"}})


@given(JSON)
def test_decoders_raise_only_field_errors(data: Any) -> None:
    for read in (Pod.from_template, Node.from_object, RuntimeClass.from_object):
        with suppress(InvalidInput):
            read(data)
    with suppress(InvalidInput):
        Pod.from_template({"spec": {"containers": [{"image": "a", "resources": data}]}})
    with suppress(InvalidInput):
        pod(affinity=data, tolerations=data, nodeSelector=data, overhead=data)


def test_paths_read_as_kubernetes_writes_them() -> None:
    assert format_path(("spec", "containers", 0, "image")) == "spec.containers[0].image"

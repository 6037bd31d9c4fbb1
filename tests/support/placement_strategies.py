"""Hypothesis strategies for clusters and pods."""

from hypothesis import strategies as st

from tests.support.placement_nodes import (
    CONTAINERD,
    NAMED_B,
    OS_TAINT,
    WINPOD,
    amounts,
    image,
    node,
    pod,
    runtime_class,
    tolerate_os,
)
from winpod.placement.model import (
    Node,
    NodeSelectorRequirement,
    Pod,
    RuntimeClass,
    Taint,
    Toleration,
)
from winpod.placement.model import NodeSelectorTerm as Term
from winpod.windows.builds import parse_build
from winpod.windows.platforms import Image

BUILDS = ["2019", "1903", "2022", "23h2", "2025"]
VERSIONS = [f"{parse_build(b)}.{r}" for b in BUILDS for r in (1, 10, 9)]
HANDLERS = ["", "docker", "runhcs-wcow-process", "runhcs-wcow-hypervisor", "nobody-knows"] + [
    f"runhcs-wcow-hypervisor-{parse_build(b).number}" for b in BUILDS
]
POOLS = st.sampled_from(["", "x", "y"])
sizes = st.sampled_from(["1Gi", "2Gi", "4Gi"])


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    pool = draw(POOLS)
    return node(
        draw(st.text("abc", min_size=1, max_size=3)),
        draw(st.sampled_from(BUILDS)),
        labels={"pool": pool} if pool else {},
        taints=draw(st.sampled_from([(), (OS_TAINT,), (Taint("a", "b", "NoExecute"),)])),
        unschedulable=draw(st.booleans()),
        runtime=draw(st.sampled_from(["winpod", "containerd", "docker", ""])),
        handlers=draw(st.sampled_from([None, CONTAINERD, WINPOD])),
        allocatable=draw(st.none() | sizes.map(lambda size: amounts(memory=size))),
        allocated=draw(st.sampled_from([(), amounts(memory="1Gi")])),
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    pool = draw(POOLS)
    return pod(
        *draw(st.sampled_from([("app",), ("app", "second")])),
        node_selector=(("pool", pool),) if pool else (),
        affinity=draw(
            st.sampled_from(
                [None, (Term((NodeSelectorRequirement("pool", "NotIn", ("x",)),)),), (NAMED_B,)]
            )
        ),
        tolerations=draw(st.sampled_from([(), tolerate_os(), (Toleration("", "Exists"),)])),
        runtime_class=draw(st.sampled_from(["", "c0", "c1"])),
        node_name=draw(st.sampled_from(["", "", "a"])),
        requests=draw(st.sampled_from([(), amounts(memory="1Gi"), amounts(memory="3Gi")])),
        host_process=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def classes(draw: st.DrawFn) -> list[RuntimeClass]:
    return [
        runtime_class(
            f"c{i}",
            draw(st.sampled_from(HANDLERS)),
            draw(st.sampled_from(["", "2022"])),
            overhead=draw(st.sampled_from([(), amounts(memory="200Mi")])),
        )
        for i in range(2)
    ]


@st.composite
def images(draw: st.DrawFn) -> dict[str, Image]:
    versions = st.lists(st.sampled_from(VERSIONS), min_size=1, max_size=4, unique=True)
    return {
        text: image(*draw(versions), index=draw(st.booleans()))
        for text in ("app", "second")
        if draw(st.integers(0, 9))
    }


fleets = st.lists(nodes(), max_size=5, unique_by=lambda n: n.name)

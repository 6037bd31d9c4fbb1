"""What becomes of pods that exist, by tables of where they are and what their images have."""

from dataclasses import replace

import pytest

from winpod.cluster.admission.deciding import Fate
from winpod.cluster.pod_verdicts import has_doubts, judge_pod
from winpod.cluster.seen import SeenPod
from winpod.windows.objects import BUILD_LABEL, OS_LABEL, Container, Node, Pod
from winpod.windows.placement import Cluster
from winpod.windows.platforms import Image, Manifest, Platform

B2019, B2022 = "10.0.17763", "10.0.20348"
TEXT = "registry.example/app:1"


def node(name: str, build: str) -> Node:
    labels = ((OS_LABEL, "windows"), (BUILD_LABEL, build))
    handlers = frozenset(("runhcs-wcow-process",))
    return Node(name, tuple(sorted(labels)), handlers=handlers, runtime="winpod")


NODES = (node("old", B2019), node("new", B2022), Node("linux", ((OS_LABEL, "linux"),)))
BY_NAME = {one.name: one for one in NODES}
CLUSTER = Cluster(NODES)
TEMPLATE = Pod((Container("app", TEXT, ()),), os="windows")


def pod(template: Pod = TEMPLATE, on: str = "", phase: str = "Pending") -> SeenPod:
    return SeenPod("shop", "web", "uid", on, phase, False, ("", ""), template)


def image(*versions: str, os: str = "windows") -> dict[str, Image]:
    manifests = tuple(Manifest(v, Platform(os, "amd64", os_version=v), 1) for v in versions)
    return {TEXT: Image(TEXT, "sha256:1", manifests)}


NEW_IMAGE = image(f"{B2022}.1")
CASES = {
    "a pod that runs, runs, whatever the rules say": (pod(on="old", phase="Running"), Fate.RUNS),
    "one that is bound to a node it fits will start": (pod(on="new"), Fate.RUNS),
    "one that is bound where it cannot start is told": (pod(on="old"), Fate.CANNOT_RUN),
    "the scheduler may choose the wrong node": (pod(), Fate.MAY_FAIL),
    "a node that is gone tells nothing": (pod(on="gone"), Fate.UNKNOWN),
    "nobody has the build that it selects and its image lacks": (
        pod(replace(TEMPLATE, node_selector=((BUILD_LABEL, B2019),))),
        Fate.CANNOT_RUN,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case: str) -> None:
    seen, fate = CASES[case]
    verdict = judge_pod(seen, CLUSTER, BY_NAME, NEW_IMAGE)
    assert verdict.fate is fate
    assert verdict.sentence


def test_a_pod_without_a_node_is_told_where_it_may_go() -> None:
    chosen = replace(TEMPLATE, node_selector=((BUILD_LABEL, B2022),))
    assert judge_pod(pod(chosen), CLUSTER, BY_NAME, NEW_IMAGE).nodes == ("new",)


def test_pods_of_linux_are_nobodys_concern_here() -> None:
    linux = Pod((Container("app", TEXT, ()),))
    on_linux = pod(linux, on="linux")
    assert judge_pod(on_linux, CLUSTER, BY_NAME, {}).fate is Fate.NOT_WINDOWS
    assert judge_pod(pod(linux), CLUSTER, BY_NAME, image("", os="linux")).fate is Fate.NOT_WINDOWS
    assert judge_pod(pod(linux), CLUSTER, BY_NAME, {}).fate is Fate.UNKNOWN


def test_a_windows_pod_on_a_node_of_linux_cannot_start_there() -> None:
    assert judge_pod(pod(on="linux"), CLUSTER, BY_NAME, NEW_IMAGE).fate is Fate.CANNOT_RUN


def test_images_are_asked_for_only_where_they_decide() -> None:
    assert has_doubts(pod(), BY_NAME)
    assert has_doubts(pod(on="old"), BY_NAME)
    assert not has_doubts(pod(on="old", phase="Running"), BY_NAME)
    assert not has_doubts(pod(on="linux"), BY_NAME)
    assert not has_doubts(replace(pod(), is_leaving=True), BY_NAME)

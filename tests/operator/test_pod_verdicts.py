"""Table tests of verdicts on existing pods."""

from dataclasses import replace

import pytest

from winpod.labels import BUILD_LABEL, OS_LABEL
from winpod.operator.admission.review import ReviewOutcome
from winpod.operator.cached_objects import CachedPod
from winpod.operator.pod_evaluator import depends_on_images, evaluate_pod
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Container, Node, Pod
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


def pod(template: Pod = TEMPLATE, on: str = "", phase: str = "Pending") -> CachedPod:
    return CachedPod("shop", "web", "uid", on, phase, False, ("", ""), template)


def image(*versions: str, os: str = "windows") -> dict[str, Image]:
    manifests = tuple(Manifest(v, Platform(os, "amd64", os_version=v), 1) for v in versions)
    return {TEXT: Image(TEXT, "sha256:1", manifests)}


NEW_IMAGE = image(f"{B2022}.1")
CASES = {
    "a pod that runs, runs, whatever the rules say": (
        pod(on="old", phase="Running"),
        ReviewOutcome.RUNS,
    ),
    "one that is bound to a node it fits will start": (pod(on="new"), ReviewOutcome.RUNS),
    "one that is bound where it cannot start is told": (pod(on="old"), ReviewOutcome.CANNOT_RUN),
    "the scheduler may choose the wrong node": (pod(), ReviewOutcome.MAY_FAIL),
    "a node that is gone tells nothing": (pod(on="gone"), ReviewOutcome.UNKNOWN),
    "nobody has the build that it selects and its image lacks": (
        pod(replace(TEMPLATE, node_selector=((BUILD_LABEL, B2019),))),
        ReviewOutcome.CANNOT_RUN,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case: str) -> None:
    seen, fate = CASES[case]
    verdict = evaluate_pod(seen, CLUSTER, BY_NAME, NEW_IMAGE)
    assert verdict.outcome is fate
    assert verdict.message


def test_unbound_pod_lists_its_possible_nodes() -> None:
    chosen = replace(TEMPLATE, node_selector=((BUILD_LABEL, B2022),))
    assert evaluate_pod(pod(chosen), CLUSTER, BY_NAME, NEW_IMAGE).nodes == ("new",)


def test_linux_pods_are_not_evaluated() -> None:
    linux = Pod((Container("app", TEXT, ()),))
    on_linux = pod(linux, on="linux")
    assert evaluate_pod(on_linux, CLUSTER, BY_NAME, {}).outcome is ReviewOutcome.NOT_WINDOWS
    assert (
        evaluate_pod(pod(linux), CLUSTER, BY_NAME, image("", os="linux")).outcome
        is ReviewOutcome.NOT_WINDOWS
    )
    assert evaluate_pod(pod(linux), CLUSTER, BY_NAME, {}).outcome is ReviewOutcome.UNKNOWN


def test_windows_pod_on_a_linux_node_cannot_start() -> None:
    assert (
        evaluate_pod(pod(on="linux"), CLUSTER, BY_NAME, NEW_IMAGE).outcome
        is ReviewOutcome.CANNOT_RUN
    )


def test_images_are_resolved_only_if_the_verdict_depends_on_them() -> None:
    assert depends_on_images(pod(), BY_NAME)
    assert depends_on_images(pod(on="old"), BY_NAME)
    assert not depends_on_images(pod(on="old", phase="Running"), BY_NAME)
    assert not depends_on_images(pod(on="linux"), BY_NAME)
    assert not depends_on_images(replace(pod(), is_deleting=True), BY_NAME)

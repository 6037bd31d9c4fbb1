"""Table tests of admission decisions."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.admission_reviews import (
    ARCH,
    B2019,
    B2022,
    B2025,
    BUILD,
    C2019,
    C2022,
    C2025,
    CLASSES,
    GUEST_2019,
    GUESTS,
    HYPERVISOR,
    LINUX,
    NODES,
    OS,
    OVERHEAD,
    TAINT,
    PatchedDecision,
    decided,
    image,
    labels,
    patched,
    pod,
    runtime_class,
    windows_node,
)
from winpod.images.lookup import ImageLookupResult
from winpod.operator.admission.class_selection import SelectionContext
from winpod.operator.admission.review import (
    ReviewDecision,
    ReviewOutcome,
    review_template,
    stated_os,
)
from winpod.operator.runtimeclasses.node_labels import handler_label
from winpod.operator.settings import AdmissionSettings, OperatorSettings
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node, Pod, RuntimeClass, Taint
from winpod.quantities import parse_quantity

HANDLER_LABEL = handler_label(f"{HYPERVISOR}-17763")


def unknown(problem: str = "the registry does not answer.", guess: str = "") -> ImageLookupResult:
    return replace(image(guess), problem=problem) if guess else ImageLookupResult(None, problem)


UNTOUCHED = PatchedDecision()


WINDOWS: dict[str, Any] = {"os": {"name": "windows"}}
SELECTED: dict[str, Any] = {"nodeSelector": {OS: "windows"}}


class TestScopeOfReviews:
    @pytest.mark.parametrize(
        ("spec", "stated"),
        [
            ({}, ""),
            (WINDOWS, "windows"),
            (SELECTED, "windows"),
            ({"runtimeClassName": "windows-2019"}, "windows"),
            ({"os": {"name": "linux"}}, "linux"),
            ({"nodeSelector": {OS: "linux"}}, "linux"),
        ],
    )
    def test_os_may_be_stated_in_the_spec(self, spec: dict[str, Any], stated: str) -> None:
        read = Pod.from_template(pod(**spec))
        assert stated_os(read, Cluster(NODES, CLASSES)) == stated

    @pytest.mark.parametrize(
        ("spec", "found"),
        [
            ({}, image("linux")),
            ({"os": {"name": "linux"}}, image("linux")),
            ({"nodeSelector": {OS: "linux"}}, image("linux", "2019")),
            ({}, image("linux", "2022")),
            ({"securityContext": {"runAsUser": 0}, "hostNetwork": True}, image("linux")),
        ],
    )
    def test_pods_that_are_not_for_windows_pass_untouched(
        self, spec: dict[str, Any], found: ImageLookupResult
    ) -> None:
        assert decided(pod(**spec), found) == UNTOUCHED

    def test_linux_pod_with_unresolved_image_is_admitted_when_failing_closed(self) -> None:
        closed = OperatorSettings(admission=AdmissionSettings(fail_open=False))
        decision = decided(pod(), unknown(), settings=closed)
        assert not decision.refusal
        assert not decision.patches
        assert "does not answer" in decision.warnings[0]

    def test_mirror_pod_is_not_changed(self) -> None:
        mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
        assert decided(pod(metadata=mirror, **WINDOWS), image("linux")) == UNTOUCHED

    def test_invalid_pods_are_left_to_the_api_server(self) -> None:
        broken = pod(nodeSelector={OS: 3})
        assert decided(broken, image("2019")) == UNTOUCHED

    def test_an_image_for_windows_only_makes_a_windows_pod(self) -> None:
        assert patched(decided(pod(), image("2022"))) == {"/spec/runtimeClassName": "windows-2022"}


class TestSelectedClass:
    @pytest.mark.parametrize(
        ("platforms", "chosen"),
        [
            (("2019",), "windows-2019"),
            (("2022",), "windows-2022"),
            (("2019", "2022"), "windows-2022"),
            (("2016", "2019"), "windows-2019"),
            (("linux", "2019"), "windows-2019"),
        ],
    )
    def test_is_of_the_build_that_the_image_has(
        self, platforms: tuple[str, ...], chosen: str
    ) -> None:
        decision = decided(pod(**WINDOWS), image(*platforms))
        assert patched(decision) == {"/spec/runtimeClassName": chosen}
        assert decision.outcome is ReviewOutcome.RUNS
        assert decision.warnings == ()

    def test_is_that_of_a_guest_where_no_node_has_the_build(self) -> None:
        nodes = (LINUX, windows_node("win-2022", B2022, *GUESTS))
        decision = decided(pod(), image("2019"), nodes=nodes, classes=(C2022, GUEST_2019))
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019-hyperv"}

    def test_is_of_the_images_own_build_before_a_newer_one_that_also_runs_it(self) -> None:
        nodes = (*NODES, windows_node("win-2025", B2025))
        classes = (*CLASSES, C2025)
        decision = decided(pod(), image("2022"), nodes=nodes, classes=classes)
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}
        newer = decided(pod(), image("2022"), nodes=nodes[:2] + nodes[3:], classes=(C2019, C2025))
        assert patched(newer) == {"/spec/runtimeClassName": "windows-2025"}

    def test_prefers_a_class_with_free_capacity(self) -> None:
        room = (("cpu", parse_quantity("1") or 0), ("pods", parse_quantity("10") or 0))
        full = windows_node("win-2022", B2022, allocatable=room, allocated=room)
        nodes = (windows_node("win-2019", B2019), full)
        decision = decided(pod(), image("2019", "2022"), nodes=nodes)
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019"}

    def test_respects_what_the_pod_selects(self) -> None:
        selecting = pod(nodeSelector={BUILD: B2019})
        decision = decided(selecting, image("2019", "2022"))
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019"}

    def test_respects_the_node_of_a_daemon_sets_pod(self) -> None:
        here = {"key": "metadata.name", "operator": "In", "values": ["win-2019"]}
        terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        daemon = pod(affinity={"nodeAffinity": required})
        decision = decided(daemon, image("2019", "2022"))
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019"}

    def test_fits_every_image_of_the_pod(self) -> None:
        both = {"a:1": image("2019", "2022"), "b:1": image("2019")}
        decision = decided(pod("a:1", "b:1"), both)
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019"}

    def test_is_none_that_selects_by_more_than_a_build(self) -> None:
        special = replace(C2022, name="a-gpu", node_selector=(*C2022.node_selector, ("gpu", "y")))
        nodes = (replace(NODES[2], labels=(*NODES[2].labels, ("gpu", "y"))),)
        decision = decided(pod(), image("2022"), nodes=nodes, classes=(special, C2022))
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}

    def test_may_select_by_a_label_for_its_handler(self) -> None:
        by_handler = replace(GUEST_2019, node_selector=((OS, "windows"), (HANDLER_LABEL, "true")))
        guest_node = replace(NODES[2], labels=(*NODES[2].labels, (HANDLER_LABEL, "true")))
        decision = decided(pod(), image("2019"), nodes=(guest_node,), classes=(by_handler,))
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019-hyperv"}

    def test_is_the_lighter_of_two(self) -> None:
        heavy = runtime_class("a-heavy", B2022, overhead=OVERHEAD)
        decision = decided(pod(), image("2022"), classes=(heavy, C2022))
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}


class TestClassesDisabled:
    OFF = OperatorSettings(classes=False)

    def test_give_the_pod_the_nodes_and_tolerations_that_a_class_would_have_given(self) -> None:
        decision = decided(pod(), image("2019"), classes=(), settings=self.OFF)
        assert patched(decision) == {
            "/spec/nodeSelector": dict(labels(B2019)),
            "/spec/tolerations": [
                {"key": "os", "operator": "Equal", "value": "windows", "effect": "NoSchedule"}
            ],
        }
        assert decision.outcome is ReviewOutcome.RUNS

    def test_add_only_what_the_pod_does_not_have(self) -> None:
        tolerated = {"key": "os", "value": "windows", "effect": "NoSchedule"}
        wrote = pod(tolerations=[tolerated], **SELECTED)
        decision = decided(wrote, image("2019"), classes=(), settings=self.OFF)
        assert patched(decision) == {
            "/spec/nodeSelector/kubernetes.io~1arch": "amd64",
            "/spec/nodeSelector/node.kubernetes.io~1windows-build": B2019,
        }

    def test_leave_a_class_that_is_named(self) -> None:
        named = pod(runtimeClassName="windows-2019")
        assert not decided(named, image("2019"), settings=self.OFF).patches


class TestUserSettings:
    def test_a_class_that_is_named_stays(self) -> None:
        for name in ("windows-2019", "windows-2019-hyperv"):
            decision = decided(pod(runtimeClassName=name), image("2019", "2022"))
            assert decision == PatchedDecision(ReviewOutcome.RUNS)

    @pytest.mark.parametrize(
        ("spec", "found", "sides"),
        [
            (
                {"runtimeClassName": "windows-2019"},
                image("2022"),
                ("RuntimeClass windows-2019", B2019, "app:1", f"{B2022}.1"),
            ),
            (
                {"runtimeClassName": "windows-2019-hyperv"},
                image("2022"),
                ("RuntimeClass windows-2019-hyperv", "guests of 10.0.17763", f"{B2022}.1"),
            ),
            (
                {"nodeSelector": {BUILD: B2019}, **WINDOWS},
                image("2022"),
                (f"spec.nodeSelector has {BUILD}={B2019}", f"{B2022}.1"),
            ),
            (WINDOWS, image("linux"), ("spec.os.name is windows", "app:1 is for linux/amd64 only")),
            (SELECTED, image("linux"), (f"spec.nodeSelector has {OS}=windows", "linux/amd64")),
            (
                {"runtimeClassName": "windows-2019"},
                image("linux"),
                (f"RuntimeClass windows-2019 selects {OS}=windows", "linux/amd64"),
            ),
            (
                {"os": {"name": "linux"}},
                image("2019"),
                ("spec.os.name is linux", "app:1 is for windows only"),
            ),
            (
                {"nodeSelector": {OS: "linux"}},
                image("2019"),
                (f"spec.nodeSelector has {OS}=linux", "app:1 is for windows only"),
            ),
            (
                {"nodeSelector": {ARCH: "arm64"}, **WINDOWS},
                image("2022"),
                (f"spec.nodeSelector has {ARCH}=arm64", "app:1 has no windows/arm64 image"),
            ),
            (
                {"os": {"name": "linux"}, "runtimeClassName": "windows-2019"},
                image("linux"),
                ("spec.os.name is linux", f"RuntimeClass windows-2019 selects {OS}=windows"),
            ),
        ],
    )
    def test_that_contradicts_its_image_is_refused_with_both_sides(
        self, spec: dict[str, Any], found: ImageLookupResult, sides: tuple[str, ...]
    ) -> None:
        for nodes in (NODES, ()):
            decision = decided(pod(**spec), found, nodes=nodes)
            assert decision.outcome is ReviewOutcome.CONFLICTS
            assert [side for side in sides if side not in decision.refusal] == []

    def test_in_annotations_counts_too(self) -> None:
        asks = {"annotations": {"winpod.dev/os-version": "2019"}}
        decision = decided(pod(metadata=asks, **WINDOWS), image("2022"))
        assert "the pod's annotations require build 10.0.17763" in decision.refusal
        assert f"{B2022}.1" in decision.refusal

    def test_is_told_apart_from_what_its_class_has_added(self) -> None:
        merged = dict(C2019.node_selector)
        decision = decided(pod(runtimeClassName="windows-2019", nodeSelector=merged), image("2022"))
        assert "RuntimeClass windows-2019 selects" in decision.refusal

    def test_is_never_patched_away(self) -> None:
        wrote = pod(tolerations=[{"key": "mine", "operator": "Exists"}], **SELECTED)
        decision = decided(wrote, image("2022"))
        assert {patch["op"] for patch in decision.patches} == {"add"}
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}

    def test_images_of_two_systems_in_one_pod_are_refused(self) -> None:
        both = {"a:1": image("2019"), "b:1": image("linux")}
        decision = decided(pod("a:1", "b:1"), both)
        assert "a:1 is for windows only and b:1 for linux/amd64" in decision.refusal


class TestUnplaceablePods:
    def test_are_refused_with_the_reason_of_every_node(self) -> None:
        decision = decided(pod(**WINDOWS), image("2025"))
        assert decision.outcome is ReviewOutcome.CANNOT_RUN
        assert "no node can run this pod" in decision.refusal
        assert f"win-2019: app:1 has no build ≤ {B2019}; it has {B2025}.1" in decision.refusal
        assert "win-2022: " in decision.refusal
        assert "To run it: " in decision.refusal
        assert decision.patches == ()

    def test_cause_warnings_if_rejection_is_disabled(self) -> None:
        lenient = OperatorSettings(admission=AdmissionSettings(refuse_unplaceable=False))
        decision = decided(pod(**WINDOWS), image("2025"), settings=lenient)
        assert not decision.refusal
        assert "no node can run this pod" in decision.warnings[0]

    def test_for_lack_of_a_handler_are_refused(self) -> None:
        nodes = (windows_node("win-2022", B2022),)
        decision = decided(pod(runtimeClassName="windows-2019-hyperv"), image("2019"), nodes=nodes)
        assert f'no handler "{HYPERVISOR}-17763"' in decision.refusal

    def test_for_their_architecture_are_refused(self) -> None:
        decision = decided(pod(**WINDOWS), image("windows/arm64 2022"))
        assert decision.outcome is ReviewOutcome.CANNOT_RUN
        assert "windows/arm64" in decision.refusal


class TestWaitingPods:
    def full(self, name: str, build: str) -> Node:
        room = (("cpu", parse_quantity("1") or 0), ("pods", parse_quantity("10") or 0))
        return windows_node(name, build, allocatable=room, allocated=room)

    def test_for_capacity_pass_with_a_warning_and_their_class(self) -> None:
        decision = decided(pod(), image("2022"), nodes=(self.full("win-2022", B2022),))
        assert decision.outcome is ReviewOutcome.WAITS
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}
        assert "win-2022: pods: requests 1; 0 of 10 is free" in decision.warnings[0]

    def test_for_an_uncordoned_node_pass_with_a_warning(self) -> None:
        nodes = (windows_node("win-2022", B2022, unschedulable=True),)
        decision = decided(pod(), image("2022"), nodes=nodes)
        assert decision.outcome is ReviewOutcome.WAITS
        assert "win-2022: the node is cordoned" in decision.warnings[0]

    def test_for_a_node_of_a_class_that_has_none_pass_with_a_warning(self) -> None:
        decision = decided(pod(), image("2025"), classes=(*CLASSES, C2025))
        assert decision.outcome is ReviewOutcome.WAITS
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2025"}
        assert "a node that does not exist yet" in decision.warnings[0]

    def test_for_a_node_they_select_pass_with_a_warning(self) -> None:
        selecting = pod(nodeSelector={OS: "windows", "pool": "scaled-down"})
        decision = decided(selecting, image("2022"))
        assert decision.outcome is ReviewOutcome.WAITS
        assert "a node that does not exist yet" in decision.warnings[0]

    def test_for_the_first_windows_node_of_all_pass_with_a_warning(self) -> None:
        decision = decided(pod(**SELECTED), image("2022"), nodes=(LINUX,), classes=())
        assert decision.outcome is ReviewOutcome.WAITS
        assert not decision.refusal

    def test_for_a_taint_to_go_pass_with_advice(self) -> None:
        bare = replace(C2022, tolerations=())
        decision = decided(pod(runtimeClassName="windows-2022"), image("2022"), classes=(bare,))
        assert decision.outcome is ReviewOutcome.WAITS
        assert "tolerate os=windows:NoSchedule" in decision.warnings[0]

    def test_for_a_node_to_be_ready_again_get_its_class(self) -> None:
        away = Taint("node.kubernetes.io/not-ready")
        nodes = (windows_node("win-2022", B2022, taints=(TAINT, away)),)
        decision = decided(pod(), image("2022"), nodes=nodes, classes=(*CLASSES, C2025))
        assert decision.outcome is ReviewOutcome.WAITS
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}

    def test_for_a_larger_node_pass_with_a_warning(self) -> None:
        room = (("cpu", parse_quantity("1") or 0),)
        nodes = (windows_node("win-2022", B2022, allocatable=room),)
        large = pod()
        large["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "4"}}
        decision = decided(large, image("2022"), nodes=nodes)
        assert not decision.refusal
        assert "cpu: requests 4" in decision.warnings[0]


class TestUnresolvedImages:
    def test_admit_a_windows_pod_with_a_warning_and_annotation(self) -> None:
        decision = decided(pod(**WINDOWS), unknown())
        assert decision.outcome is ReviewOutcome.UNKNOWN
        assert patched(decision) == {
            "/metadata/annotations": {"winpod.dev/unchecked": "the registry does not answer."}
        }
        assert "could not be checked: the registry does not answer." in decision.warnings[0]

    def test_are_reported_once(self) -> None:
        decision = decided(pod(runtimeClassName="windows-2022"), unknown())
        assert len(decision.warnings) == 1

    def test_stale_results_are_used_with_a_warning(self) -> None:
        old = replace(image("2022"), is_stale=True, caveat="the registry is down.")
        decision = decided(pod(**WINDOWS), old)
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2022"}
        assert decision.warnings == ("its images could not be refreshed: the registry is down.",)

    def test_reject_a_windows_pod_when_failing_closed(self) -> None:
        closed = OperatorSettings(admission=AdmissionSettings(fail_open=False))
        decision = decided(pod(**WINDOWS), unknown(), settings=closed)
        assert "could not be checked: the registry does not answer." in decision.refusal

    def test_guessed_build_selects_a_class_but_never_rejects(self) -> None:
        decision = decided(pod(**WINDOWS), unknown(guess="2022"))
        assert patched(decision)["/spec/runtimeClassName"] == "windows-2022"
        wrong = decided(pod(**WINDOWS), unknown(guess="2025"))
        assert not wrong.refusal
        assert "/spec/runtimeClassName" not in patched(wrong)

    def test_leave_the_other_annotations_alone(self) -> None:
        noted = {"annotations": {"team": "a"}}
        decision = decided(pod(metadata=noted, **WINDOWS), unknown())
        assert patched(decision) == {
            "/metadata/annotations/winpod.dev~1unchecked": "the registry does not answer."
        }

    def test_beside_a_known_one_that_fits_nowhere_give_a_warning_only(self) -> None:
        both = {"a:1": image("2025"), "b:1": unknown()}
        decision = decided(pod("a:1", "b:1", **WINDOWS), both)
        assert not decision.refusal
        assert len(decision.warnings) == 2


def test_class_missing_from_the_cache_does_not_reject() -> None:
    decision = decided(pod(runtimeClassName="brand-new", **WINDOWS), image("2019"))
    assert not decision.refusal
    assert "may not be admitted" in decision.warnings[0]


class TestRetiringClasses:
    SENTENCE = "use windows-2022 from June on (ask the platform team)"
    RETIRING: ClassVar = {"windows-2019": SENTENCE}

    def test_accept_no_new_pods_and_give_the_reason(self) -> None:
        decision = decided(
            pod(runtimeClassName="windows-2019"), image("2019"), retiring=self.RETIRING
        )
        assert decision.outcome is ReviewOutcome.RETIRED
        assert decision.refusal == f"RuntimeClass windows-2019 accepts no new pods: {self.SENTENCE}"

    def test_are_not_bypassed_by_an_invalid_annotation(self) -> None:
        wrote = pod(
            metadata={"annotations": {"winpod.dev/os-version": "nonsense"}},
            runtimeClassName="windows-2019",
        )
        assert self.SENTENCE in decided(wrote, image("2019"), retiring=self.RETIRING).refusal

    def test_reject_pods_of_unknown_os(self) -> None:
        odd = RuntimeClass("windows-2019", "somebodys")
        wrote = pod(runtimeClassName="windows-2019")
        decision = decided(wrote, unknown(), classes=(odd,), retiring=self.RETIRING)
        assert self.SENTENCE in decision.refusal

    def test_are_not_chosen_where_another_fits(self) -> None:
        decision = decided(pod(), image("2019"), retiring=self.RETIRING)
        assert patched(decision) == {"/spec/runtimeClassName": "windows-2019-hyperv"}

    def test_reject_with_their_message_if_no_other_class_fits(self) -> None:
        decision = decided(pod(), image("2019"), classes=(C2019, C2022), retiring=self.RETIRING)
        assert decision.outcome is ReviewOutcome.RETIRED
        assert self.SENTENCE in decision.refusal

    def test_are_not_bypassed_by_omitting_the_class(self) -> None:
        nodes = tuple(replace(node, taints=()) for node in NODES)
        lenient = OperatorSettings(admission=AdmissionSettings(refuse_unplaceable=False))
        decision = decided(
            pod(**SELECTED),
            image("2019"),
            nodes=nodes,
            classes=(C2019, C2022),
            settings=lenient,
            retiring=self.RETIRING,
        )
        assert self.SENTENCE in decision.refusal


class TestLinuxFields:
    def test_on_windows_pods_give_warnings_with_their_path(self) -> None:
        wrote = pod(securityContext={"runAsUser": 1000}, **SELECTED)
        decision = decided(wrote, image("2022"))
        assert [w.split()[0] for w in decision.warnings] == ["spec.securityContext.runAsUser"]

    def test_number_of_warnings_is_limited(self) -> None:
        wrote = pod(*(f"a:{i}" for i in range(20)), **SELECTED)
        for container in wrote["spec"]["containers"]:
            container["securityContext"] = {"runAsUser": 1, "privileged": True}
        found = {f"a:{i}": image("2022") for i in range(20)}
        assert len(decided(wrote, found).warnings) <= 10


class TestTemplates:
    def template(self, kind: str, **spec: Any) -> dict[str, Any]:
        version = "batch/v1" if "Job" in kind else "apps/v1"
        template: dict[str, Any] = {"template": pod(**spec)}
        if kind == "CronJob":
            template = {"jobTemplate": {"spec": template}}
        return {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": template}

    def decided(
        self, obj: dict[str, Any], found: ImageLookupResult, **retiring: str
    ) -> ReviewDecision:
        names = {name.replace("_", "-"): sentence for name, sentence in retiring.items()}
        context = SelectionContext(Cluster(NODES, CLASSES), OperatorSettings(), names)
        return review_template(obj, context, {"app:1": found})

    KINDS = ("Deployment", "StatefulSet", "ReplicaSet", "Job", "CronJob", "DaemonSet")

    @pytest.mark.parametrize("kind", KINDS)
    def test_whose_pods_no_node_runs_are_warned_about_and_never_refused(self, kind: str) -> None:
        decision = self.decided(self.template(kind, **SELECTED), image("2025"))
        assert decision.refusal == ""
        assert decision.warnings[0].startswith(f"pods of this {kind} will be rejected: no node")

    @pytest.mark.parametrize("kind", [k for k in KINDS if k != "DaemonSet"])
    def test_no_warning_if_pods_will_get_a_class(self, kind: str) -> None:
        decision = self.decided(self.template(kind), image("2019"))
        assert decision == ReviewDecision(ReviewOutcome.RUNS)

    def test_of_retiring_classes_are_warned_about(self) -> None:
        named = self.template("Deployment", runtimeClassName="windows-2019")
        decision = self.decided(named, image("2019"), windows_2019="move on")
        assert "accepts no new pods: move on" in decision.warnings[0]

    def test_name_their_own_fields(self) -> None:
        wrote = self.template("CronJob", securityContext={"runAsUser": 1000}, **SELECTED)
        path = "spec.jobTemplate.spec.template.spec.securityContext.runAsUser"
        assert self.decided(wrote, image("2022")).warnings[0].startswith(path)

    def test_other_kinds_are_ignored(self) -> None:
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {}}
        assert self.decided(service, image("2022")) == ReviewDecision()

"""Tests of the Pod API table, and of the linter with arbitrary input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.windows.builds import Build, parse_build
from winpod.windows.pod_api.doc import render_document
from winpod.windows.pod_api.linter import FIELD_RULES, Behaviour, FieldRule, Finding, lint_pod

DOCUMENT = Path(__file__).parents[3] / "docs" / "pod-api-on-windows.md"
FIELDS_THAT_MATTER = """
    hostNetwork hostPID hostIPC hostUsers shareProcessNamespace seLinuxOptions seLinuxChangePolicy
    seccompProfile appArmorProfile capabilities privileged allowPrivilegeEscalation procMount
    readOnlyRootFilesystem runAsUser runAsGroup fsGroup fsGroupChangePolicy supplementalGroups
    supplementalGroupsPolicy runAsNonRoot sysctls runAsUserName gmsaCredentialSpec
    gmsaCredentialSpecName hostProcess os.name dnsPolicy dnsConfig hostAliases defaultMode
    items[*].mode serviceAccountToken subPath subPathExpr terminationMessagePath
    terminationMessagePolicy emptyDir.medium emptyDir.sizeLimit mountPropagation recursiveReadOnly
    readOnly volumeDevices limits.hugepages-* requests.hugepages-* limits.ephemeral-storage
    resources.requests limits.cpu limits.memory spec.resources resizePolicy livenessProbe.exec
    readinessProbe.httpGet startupProbe.tcpSocket livenessProbe.grpc lifecycle.postStart
    lifecycle.preStop lifecycle.stopSignal terminationGracePeriodSeconds hostPath.path
    hostPath.type hostPath volumes[*].nfs volumes[*].iscsi volumes[*].cephfs volumes[*].rbd
    volumes[*].fc volumes[*].image ephemeralContainers hostPort hostIP mountPath protocol overhead
    tty stdin command env imagePullPolicy resourceClaims resources.limits
"""


def by_id(name: str) -> FieldRule:
    return next(rule for rule in FIELD_RULES if rule.id == f"pod-api/{name}")


def ids(spec: Any, **given: Any) -> list[str]:
    return [finding.rule.id.removeprefix("pod-api/") for finding in lint_pod(spec, **given)]


def only(spec: Any, **given: Any) -> Finding:
    findings = lint_pod(spec, **given)
    assert len(findings) == 1, findings
    return findings[0]


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "app", "image": "app", **fields}]}


@pytest.mark.parametrize("os_stated", [True, False], ids=["os-windows", "no-os"])
@pytest.mark.parametrize("rule", FIELD_RULES, ids=lambda rule: rule.id)
def test_example_matches_only_its_row(rule: FieldRule, os_stated: bool) -> None:
    findings = lint_pod(rule.example_spec(os_stated=os_stated))
    behaviour = rule.behaviour(os_stated=os_stated)
    silent = behaviour is Behaviour.WORKS or (behaviour is Behaviour.DIFFERS and not rule.notable)
    assert {(f.rule.id, f.behaviour) for f in findings} == (
        set() if silent else {(rule.id, behaviour)}
    )


@pytest.mark.parametrize("rule", FIELD_RULES, ids=lambda rule: rule.id)
def test_rows_have_an_effect_and_errors_an_alternative(rule: FieldRule) -> None:
    assert rule.effect.endswith((".", "`"))
    assert rule.effect[0] not in " ."
    if {rule.os_stated, rule.os_unstated} & {
        Behaviour.REJECTED,
        Behaviour.FAILS,
        Behaviour.IGNORED,
    } or rule.notable:
        assert rule.alternative.endswith(".")
    assert rule.when.predicate({}, {}, None) is False


def test_ids_are_unique_and_are_slugs() -> None:
    found = [rule.id for rule in FIELD_RULES]
    assert len(found) == len(set(found))
    assert all(name.removeprefix("pod-api/").replace("-", "").isalnum() for name in found)


def test_rows_and_findings_can_be_collected_in_sets() -> None:
    assert len(set(FIELD_RULES)) == len(FIELD_RULES)
    assert len({*lint_pod({"hostPID": True}), *lint_pod({"hostPID": True})}) == 1


def test_no_two_rows_have_the_same_field_and_condition() -> None:
    pairs = [(path, rule.when.description) for rule in FIELD_RULES for path in rule.fields]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("name", FIELDS_THAT_MATTER.split())
def test_every_field_that_matters_on_windows_is_in_the_table(name: str) -> None:
    assert any(
        path == name or path.endswith(f".{name}") for rule in FIELD_RULES for path in rule.fields
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
NAMES = st.sampled_from(
    sorted({part for rule in FIELD_RULES for p in rule.fields for part in re.split(r"\W+", p)})
)
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, 0, 420, "", "windows", "C:", "/proc", "\\\\.\\pipe\\x", "hyperv"),
        *("ContainerAdministrator", "Unmasked", "Bidirectional", "HugePages", "\ud800"),
        *([], {}, [None], ["/bin/sh"], [[]], {"name": None}, {1: 2}),
    ]
)
POD_LIKE = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=40,
)


@given(JSON)
def test_arbitrary_data_does_not_raise(data: Any) -> None:
    assert isinstance(lint_pod(data), tuple)


@given(POD_LIKE)
def test_malformed_pods_do_not_raise(data: Any) -> None:
    for finding in lint_pod(data, builds=(parse_build("2019"),), kubernetes=(1, 22)):
        assert finding.message


@given(POD_LIKE)
def test_every_condition_takes_every_value(value: Any) -> None:
    spec = {"containers": [value], "securityContext": value}
    for rule in FIELD_RULES:
        assert isinstance(rule.when.predicate(spec, {"securityContext": value}, value), bool), (
            rule.id
        )


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_a_container_field_is_found_in_every_kind_of_container(kind: str) -> None:
    spec = {kind: [{}, {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}]}
    assert only(spec).path == (kind, 1, "securityContext", "capabilities")


def test_ephemeral_containers_have_no_ports() -> None:
    ports = [{"containerPort": 1, "protocol": "SCTP"}]
    assert ids(
        {"initContainers": [{"ports": ports}], "ephemeralContainers": [{"ports": ports}]}
    ) == ["sctp"]


def test_findings_come_in_the_order_of_the_manifest() -> None:
    spec = {"hostPID": True, "containers": [{"command": ["sh"]}], "hostIPC": True}
    assert ids(spec) == ["host-pid", "command", "host-ipc"]


@pytest.mark.parametrize(
    ("behaviour", "severity"),
    [
        (Behaviour.REJECTED, "error"),
        (Behaviour.FAILS, "error"),
        (Behaviour.IGNORED, "warning"),
        (Behaviour.DIFFERS, "note"),
    ],
)
def test_severity_follows_behaviour(behaviour: Behaviour, severity: str) -> None:
    assert Finding(FIELD_RULES[0], (), behaviour, "").severity == severity


def test_message_names_the_field_and_the_effect() -> None:
    finding = only({"os": {"name": "windows"}, **container(securityContext={"privileged": True})})
    assert finding.message == (
        "containers[0].securityContext.privileged is rejected by the API server. "
        "Windows has no privileged containers."
    )


def test_os_field_is_used_only_if_the_cluster_supports_it() -> None:
    spec = {"os": {"name": "windows"}, "hostPID": True}
    assert only(spec).behaviour is Behaviour.REJECTED
    assert only(spec, kubernetes=(1, 36)).behaviour is Behaviour.REJECTED
    assert by_id("host-pid").os_unstated in {
        f.behaviour for f in lint_pod(spec, kubernetes=(1, 23))
    }


def test_a_newer_field_is_dropped_by_an_older_cluster() -> None:
    spec = by_id("pod-resources").example_spec(os_stated=True)
    assert only(spec, kubernetes=(1, 34)).behaviour is Behaviour.REJECTED
    old = only(spec, kubernetes=(1, 33))
    assert (old.behaviour, old.severity) == (Behaviour.IGNORED, "warning")
    assert "before Kubernetes 1.34" in old.message


def test_feature_of_newer_builds_is_noted_for_older_builds() -> None:
    spec = by_id("mount-path-host-process").example_spec(os_stated=True)
    new, old = Build(10, 0, 20348, 2113), Build(10, 0, 17763, 805)
    assert lint_pod(spec, builds=(new,)) == ()
    assert lint_pod(spec) == ()
    finding = only(spec, builds=(new, old))
    assert finding.severity == "note"
    assert "before 10.0.19041" in finding.message


def test_false_is_refused_with_the_os_stated_and_harmless_without() -> None:
    for field, name in (("hostUsers", "host-users-true"), ("shareProcessNamespace", None)):
        spec = {field: name is not None}
        assert ids(spec) == []
        assert ids({"os": {"name": "windows"}, **spec}) == [name or "share-process-namespace-false"]


@pytest.mark.parametrize(
    ("user", "invalid"),
    [
        ("ContainerUser", False),
        ("NT AUTHORITY\\SYSTEM", False),
        ("corp.example.com\\web", False),
        ("IIS APPPOOL\\Default", False),
        ("", True),
        ("a\\b\\c", True),
        ("\\user", True),
        ("DOMAIN\\", True),
        (".hidden\\user", True),
        ("...", True),
        ("who?", True),
        ("a\tb", True),
        ("u" * 104, False),
        ("u" * 105, True),
        ("é" * 53, True),
        ("d" * 16 + "!\\user", True),
    ],
)
def test_user_names_are_validated_as_by_the_api_server(user: str, invalid: bool) -> None:
    found = ids({"securityContext": {"windowsOptions": {"runAsUserName": user}}})
    assert found == (["run-as-user-name-invalid"] if invalid else [])


@pytest.mark.parametrize(
    ("pod", "own", "fails"),
    [
        (True, None, True),
        (True, True, True),
        (True, False, False),
        (None, True, True),
        (False, True, True),
        (None, None, False),
    ],
)
@pytest.mark.parametrize("place", ["pod", "container"])
def test_run_as_non_root_counts_where_it_takes_effect(
    pod: bool | None, own: bool | None, fails: bool, place: str
) -> None:
    administrator = {"windowsOptions": {"runAsUserName": "CONTAINERADMINISTRATOR"}}
    spec = container(
        securityContext={"runAsNonRoot": own, **(administrator if place == "container" else {})}
    )
    spec["securityContext"] = {"runAsNonRoot": pod, **(administrator if place == "pod" else {})}
    assert ids(spec) == (["run-as-non-root-administrator"] if fails else [])


def test_a_container_that_runs_as_someone_else_is_not_the_pods_administrator() -> None:
    spec = container(securityContext={"windowsOptions": {"runAsUserName": "ContainerUser"}})
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "windowsOptions": {"runAsUserName": "ContainerAdministrator"},
    }
    assert ids(spec) == []


@pytest.mark.parametrize(
    ("command", "linux"),
    [
        (["/bin/sh", "-c", "true"], True),
        (["bash"], True),
        (["/usr/bin/env", "python"], True),
        (["./start.sh"], True),
        (["cmd", "/c", "dir"], False),
        (["powershell.exe"], False),
        (["C:\\Program Files\\Git\\bin\\bash.exe"], False),
        (["/app/server.exe"], False),
        (["busybox", "sh"], False),
        ([], False),
        ("/bin/sh", False),
    ],
)
def test_unix_program_in_a_command_is_found(command: Any, linux: bool) -> None:
    assert ids(container(command=command)) == (["command"] if linux else [])
    probe = {"exec": {"command": command}}
    assert ids(container(startupProbe=probe)) == (["exec-command"] if linux else [])


@pytest.mark.parametrize(
    ("path", "linux"),
    [
        ("/proc", True),
        ("/sys/fs/cgroup", True),
        ("/var/run/docker.sock", True),
        ("/var/log", False),
        ("/var/lib/kubelet/plugins", False),
        ("/procdump", False),
        ("C:\\dev", False),
        (7, False),
    ],
)
def test_linux_system_path_is_found(path: Any, linux: bool) -> None:
    volumes = [{"name": "v", "hostPath": {"path": path}}]
    assert ids({"volumes": volumes}) == (["host-path"] if linux else [])


def test_init_containers_count_as_containers_of_a_host_process_pod() -> None:
    options = {"hostProcess": True, "runAsUserName": "NT AUTHORITY\\SYSTEM"}
    spec = container(securityContext={"windowsOptions": options})
    spec |= {"hostNetwork": True, "initContainers": [{"name": "setup", "image": "app"}]}
    assert ids(spec) == ["host-process-mixed"]


def test_ordinary_pod_has_no_findings() -> None:
    spec = container(
        resources={"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        volumeMounts=[{"name": "data", "mountPath": "/data", "readOnly": True}],
        livenessProbe={"httpGet": {"path": "/", "port": 80}},
        securityContext={"runAsNonRoot": True, "windowsOptions": {"runAsUserName": "app"}},
    )
    spec |= {
        "os": {"name": "windows"},
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "volumes": [{"name": "data", "configMap": {"name": "data", "defaultMode": 420}}],
    }
    assert lint_pod(spec, builds=(parse_build("2019"),), kubernetes=(1, 36)) == ()


def test_document_is_generated_from_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render_document(), (
        "run: python -m winpod.windows.pod_api.doc > docs/pod-api-on-windows.md"
    )

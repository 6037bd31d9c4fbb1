"""Parsing of facts: output of real programs, in any language, becomes a state or an error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import WinpodError
from winpod.instances.planner.desired import FactQuery
from winpod.instances.planner.state import (
    UNREADABLE,
    FeatureState,
    InstanceState,
    Network,
    ObservedService,
    ServiceState,
    StartType,
)
from winpod.instances.ssh import facts
from winpod.instances.ssh.facts import (
    FactPart,
    every_part,
    read_answers,
    read_failure_actions,
    read_values,
)
from winpod.instances.ssh.scripts import ScriptSection, UnexpectedOutput, decode_output
from winpod.windows.builds import Build

WINDOWS = r"""
HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows NT\CurrentVersion
    SystemRoot    REG_SZ    C:\Windows
    CurrentBuild    REG_SZ    20348
    CurrentMajorVersionNumber    REG_DWORD    0xa
    CurrentMinorVersionNumber    REG_DWORD    0x0
    ProductName    REG_SZ    Windows Server 2022 Datacenter
    UBR    REG_DWORD    0x9a3
    DigitalProductId    REG_BINARY    A40000
"""
KUBELET = r"""
HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Services\kubelet
    Type    REG_DWORD    0x10
    Start    REG_DWORD    0x2
    ErrorControl    REG_DWORD    0x1
    ImagePath    REG_EXPAND_SZ    "C:\k\bin\kubelet.exe" --windows-service    --v=2
    DisplayName    REG_SZ    kubelet
    DependOnService    REG_MULTI_SZ    containerd\0hns
    ObjectName    REG_SZ    LocalSystem
    Description    REG_SZ    Kubelet, mit Umlaut: ä
"""
KUBELET += "    FailureActions    REG_BINARY    2C010000000000000000000003000000140000000"
KUBELET += "1000000102700000100000010270000010000001027000000\n"
QUERY = """
SERVICE_NAME: kubelet
        TYP                : 10  WIN32_OWN_PROCESS
        STATUS             : 4  RUNNING
                                (STOPPABLE, NOT_PAUSABLE, ACCEPTS_SHUTDOWN)
        WIN32_BEENDIGUNGSCODE : 0  (0x0)
        PRÜFPUNKT          : 0x0
"""
MISSING = """[SC] EnumQueryServicesStatus:OpenService FAILED 1060:

Der angegebene Dienst ist kein installierter Dienst.
"""
FEATURE = """
Deployment Image Servicing and Management tool
Version: 10.0.20348.1

Image Version: 10.0.20348.2467

Feature Information:

Feature Name : Containers
Display Name : Containers
Restart Required : Possible
State : {}

Custom Properties:
"""
NONE = InstanceState(Build(10, 0, 0), "", "", "")


def reading(
    part: FactPart, text: str, code: int = 0, before: InstanceState = NONE
) -> InstanceState:
    return part.read(before, ScriptSection(text, code))


def test_build_is_read_with_revision() -> None:
    state = reading(facts.windows_part(), WINDOWS)
    assert (state.build, state.product) == (
        Build(10, 0, 20348, 2467),
        "Windows Server 2022 Datacenter",
    )


def test_pending_host_name_is_ignored() -> None:
    text = "    Hostname    REG_SZ    WIN-OLD\n    NV Hostname    REG_SZ    web-1\n"
    assert reading(facts.name_part(), text).hostname == "WIN-OLD"


def test_service_is_read_in_any_language() -> None:
    state = reading(facts.service_part("kubelet"), KUBELET + QUERY)
    assert state.service("Kubelet") == ObservedService(
        "kubelet",
        r'"C:\k\bin\kubelet.exe" --windows-service    --v=2',
        ("containerd", "hns"),
        StartType.AUTO,
        ServiceState.RUNNING,
        "Kubelet, mit Umlaut: ä",
        (10_000, 10_000, 10_000),
        300,
    )


def test_removed_service_is_dropped_from_the_state() -> None:
    before = reading(facts.service_part("kubelet"), KUBELET + QUERY)
    assert reading(facts.service_part("kubelet"), MISSING, 1060, before).services == {}


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("1  STOPPED", ServiceState.STOPPED),
        ("2  START_PENDING", ServiceState.STARTING),
        ("3  STOP_PENDING", ServiceState.STOPPING),
        ("7  PAUSED", ServiceState.RUNNING),
    ],
)
def test_service_states_are_mapped(output: str, state: ServiceState) -> None:
    text = QUERY.replace("4  RUNNING", output)
    assert facts.read_running(text) is state


@pytest.mark.parametrize(
    ("value", "start"), [("0x3", StartType.MANUAL), ("0x4", StartType.DISABLED)]
)
def test_start_types_are_mapped(value: str, start: StartType) -> None:
    text = KUBELET.replace("Start    REG_DWORD    0x2", f"Start    REG_DWORD    {value}") + QUERY
    found = reading(facts.service_part("kubelet"), text).service("kubelet")
    assert found
    assert found.start is start


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("Enabled", FeatureState.ENABLED),
        ("Enable Pending", FeatureState.PENDING),
        ("Disabled", FeatureState.DISABLED),
        ("Disabled with Payload Removed", FeatureState.DISABLED),
    ],
)
def test_feature_states_are_mapped(output: str, state: FeatureState) -> None:
    found = reading(facts.feature_part("Containers"), FEATURE.format(output))
    assert found.features == {"Containers": state}


def test_unknown_feature_is_absent() -> None:
    found = reading(facts.feature_part("Nonsense"), "Error: 0x800f080c\n", -2146498548)
    assert found.features == {"Nonsense": FeatureState.ABSENT}


@pytest.mark.parametrize(
    "text",
    [
        "SHA256 hash of C:\\k\\a:\n" + "ab" * 32 + "\nCertUtil: -hashfile command completed.\n",
        "SHA256-Hash der Datei C:\\k\\a:\n" + " ".join(["AB"] * 32) + "\nErfolgreich.\n",
    ],
)
def test_hash_is_found_in_any_language(text: str) -> None:
    assert reading(facts.file_part(r"C:\k\a"), text).files == {r"C:\k\a": "ab" * 32}


def test_removed_file_is_dropped_from_the_state() -> None:
    before = replace(NONE, files={r"C:\k\a": "ab" * 32, r"C:\k\b": "cd" * 32})
    assert reading(facts.file_part(r"C:\k\a"), "", 0, before).files == {r"C:\k\b": "cd" * 32}


def test_unreadable_file_is_not_missing() -> None:
    output = "CertUtil: -hashfile command FAILED: 0x80070020 (WIN32: 32)\n"
    assert reading(facts.file_part(r"C:\k\a"), output, 32).files == {r"C:\k\a": UNREADABLE}


def test_directories_exist_and_are_empty_or_not() -> None:
    part = facts.directory_part(r"C:\k")
    assert not reading(part, "").directories
    assert reading(part, "there\n").empty == {r"C:\k"}
    full = reading(part, "there\nbin\ncni\n", 0, reading(part, "there\n"))
    assert full.directories == {r"C:\k"}
    assert not full.empty


CONTAINERS = replace(NONE, features={"Containers": FeatureState.ENABLED})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ('{"ID":"a","Name":"nat","Type":"NAT"}', ["nat"]),
        ('[{"Id":"a","Name":"nat","Type":"nat"},{"Id":"b","Name":null,"Type":"l2"}]', ["nat", ""]),
    ],
)
def test_networks_are_parsed(text: str, names: list[str]) -> None:
    output = f"133762465120000000\n5368709120\n{text}\n"
    found = reading(facts.machine_part(), output, 0, CONTAINERS)
    assert [network.name for network in found.networks] == names
    assert (found.booted, found.free_bytes) == ("133762465120000000", 5 << 30)


def test_failed_network_listing_is_an_error() -> None:
    with pytest.raises(UnexpectedOutput, match="networks"):
        reading(facts.machine_part(), "133762465120000000\n1\n", 1, CONTAINERS)
    assert reading(facts.machine_part(), "133762465120000000\n1\n", 1).networks == ()


def test_images_have_tags_and_digests_and_are_empty_without_containerd() -> None:
    text = '{"images":[{"repoTags":["a:1"],"repoDigests":["a@sha256:1"]},{"repoTags":null},7]}'
    assert reading(facts.images_part(), text).images == {"a:1", "a@sha256:1"}
    assert reading(facts.images_part(), "E1116 cannot connect").images == frozenset()


def test_pods_are_ids_and_empty_without_containerd() -> None:
    text = '{"items":[{"id":"a1","state":"SANDBOX_READY"},{"id":"b2"}]}'
    assert reading(facts.pods_part(), text).pods == {"a1", "b2"}
    assert reading(facts.pods_part(), "E1116 cannot connect").pods == frozenset()


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (facts.windows_part(), "ERROR: The system was unable to find the key."),
        (facts.windows_part(), WINDOWS.replace("20348", "many")),
        (facts.name_part(), ""),
        (facts.machine_part(), "'powershell.exe' is not recognized"),
        (facts.feature_part("Containers"), "Elevated permissions are required"),
        (facts.feature_part("Containers"), FEATURE.format("Sleepy")),
        (facts.service_part("kubelet"), KUBELET + "[SC] 1072"),
    ],
)
def test_unexpected_output_is_an_error(part: FactPart, text: str) -> None:
    with pytest.raises(UnexpectedOutput) as caught:
        reading(part, text)
    assert str(caught.value).endswith((".", "Get-Date"))


FACT_QUERY = FactQuery((r"C:\k",), (r"C:\k\a",), ("kubelet",), ("Containers",), images=True)
_PIECES = st.sampled_from(
    [WINDOWS, KUBELET, QUERY, MISSING, FEATURE.format("Enabled"), "there\n", '{"images":', "7\n8\n"]
)
_TEXTS = st.lists(st.one_of(st.text(max_size=40), _PIECES), max_size=3).map("".join)


@given(st.data())
def test_arbitrary_output_never_crashes_the_parser(data: st.DataObject) -> None:
    parts = every_part(FACT_QUERY)
    answers = [
        ScriptSection(data.draw(_TEXTS), data.draw(st.sampled_from([0, 1, 1060]))) for _ in parts
    ]
    with suppress(WinpodError):
        assert read_answers(NONE, parts, answers).hostname


@given(st.binary(max_size=80))
def test_truncated_failure_actions_are_read_as_far_as_possible(data: bytes) -> None:
    reset, restarts = read_failure_actions(data)
    assert reset >= 0
    assert len(restarts) <= max(0, len(data) - 20) // 8


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded(data: bytes) -> None:
    assert "\r" not in decode_output(data)
    read_values(decode_output(data))


def test_code_page_437_is_decoded() -> None:
    assert decode_output("Größe\r\n".encode("cp437")) == "Größe\n"


def test_network_has_its_id() -> None:
    output = '1\n2\n{"ID":"0E2","Name":"nat","Type":"NAT"}'
    assert reading(facts.machine_part(), output, 0, CONTAINERS).networks == (
        Network("0E2", "nat", "NAT"),
    )

"""Reading an instance: what real programs print, in any language, becomes a state or a sentence."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.instances.remote import parts
from winpod.instances.remote.parts import Part, every_part
from winpod.instances.remote.registry_values import read_failure_actions, read_values
from winpod.instances.remote.scripts import OddAnswer, Section, decode
from winpod.instances.remote.surveying import read_answers
from winpod.instances.rules.desired import Question
from winpod.instances.rules.state import (
    UNREADABLE,
    FeatureState,
    Network,
    Running,
    Service,
    Start,
    State,
)
from winpod.windows.builds import Build
from winpod.windows.errors import WinpodError

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
NONE = State(Build(10, 0, 0), "", "", "")


def reading(part: Part, text: str, code: int = 0, before: State = NONE) -> State:
    return part.read(before, Section(text, code))


def test_a_build_is_read_with_its_revision() -> None:
    state = reading(parts.windows_part(), WINDOWS)
    assert (state.build, state.product) == (
        Build(10, 0, 20348, 2467),
        "Windows Server 2022 Datacenter",
    )


def test_a_name_that_waits_for_a_restart_is_not_the_one_it_has() -> None:
    text = "    Hostname    REG_SZ    WIN-OLD\n    NV Hostname    REG_SZ    web-1\n"
    assert reading(parts.name_part(), text).hostname == "WIN-OLD"


def test_a_service_is_read_whole_in_any_language() -> None:
    state = reading(parts.service_part("kubelet"), KUBELET + QUERY)
    assert state.service("Kubelet") == Service(
        "kubelet",
        r'"C:\k\bin\kubelet.exe" --windows-service    --v=2',
        ("containerd", "hns"),
        Start.AUTO,
        Running.RUNNING,
        "Kubelet, mit Umlaut: ä",
        (10_000, 10_000, 10_000),
        300,
    )


def test_a_service_that_is_gone_is_no_longer_in_the_state() -> None:
    before = reading(parts.service_part("kubelet"), KUBELET + QUERY)
    assert reading(parts.service_part("kubelet"), MISSING, 1060, before).services == {}


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("1  STOPPED", Running.STOPPED),
        ("2  START_PENDING", Running.STARTING),
        ("3  STOP_PENDING", Running.STOPPING),
        ("7  PAUSED", Running.RUNNING),
    ],
)
def test_every_state_of_a_service_has_its_word(said: str, state: Running) -> None:
    text = QUERY.replace("4  RUNNING", said)
    assert parts.read_running(text) is state


@pytest.mark.parametrize(("value", "start"), [("0x3", Start.MANUAL), ("0x4", Start.DISABLED)])
def test_a_service_that_does_not_start_by_itself_is_told(value: str, start: Start) -> None:
    text = KUBELET.replace("Start    REG_DWORD    0x2", f"Start    REG_DWORD    {value}") + QUERY
    found = reading(parts.service_part("kubelet"), text).service("kubelet")
    assert found
    assert found.start is start


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("Enabled", FeatureState.ENABLED),
        ("Enable Pending", FeatureState.PENDING),
        ("Disabled", FeatureState.DISABLED),
        ("Disabled with Payload Removed", FeatureState.DISABLED),
    ],
)
def test_a_feature_is_read_with_the_restart_it_waits_for(said: str, state: FeatureState) -> None:
    found = reading(parts.feature_part("Containers"), FEATURE.format(said))
    assert found.features == {"Containers": state}


def test_a_feature_that_windows_does_not_know_is_absent() -> None:
    found = reading(parts.feature_part("Nonsense"), "Error: 0x800f080c\n", -2146498548)
    assert found.features == {"Nonsense": FeatureState.ABSENT}


@pytest.mark.parametrize(
    "text",
    [
        "SHA256 hash of C:\\k\\a:\n" + "ab" * 32 + "\nCertUtil: -hashfile command completed.\n",
        "SHA256-Hash der Datei C:\\k\\a:\n" + " ".join(["AB"] * 32) + "\nErfolgreich.\n",
    ],
)
def test_a_hash_is_found_in_any_language(text: str) -> None:
    assert reading(parts.file_part(r"C:\k\a"), text).files == {r"C:\k\a": "ab" * 32}


def test_a_file_that_is_gone_is_no_longer_in_the_state() -> None:
    before = replace(NONE, files={r"C:\k\a": "ab" * 32, r"C:\k\b": "cd" * 32})
    assert reading(parts.file_part(r"C:\k\a"), "", 0, before).files == {r"C:\k\b": "cd" * 32}


def test_a_file_that_nobody_may_read_is_not_taken_for_a_missing_one() -> None:
    said = "CertUtil: -hashfile command FAILED: 0x80070020 (WIN32: 32)\n"
    assert reading(parts.file_part(r"C:\k\a"), said, 32).files == {r"C:\k\a": UNREADABLE}


def test_directories_are_there_and_empty_or_not() -> None:
    part = parts.directory_part(r"C:\k")
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
def test_networks_are_none_one_or_several(text: str, names: list[str]) -> None:
    said = f"133762465120000000\n5368709120\n{text}\n"
    found = reading(parts.machine_part(), said, 0, CONTAINERS)
    assert [network.name for network in found.networks] == names
    assert (found.booted, found.free_bytes) == ("133762465120000000", 5 << 30)


def test_networks_that_cannot_be_listed_are_not_taken_for_none() -> None:
    with pytest.raises(OddAnswer, match="networks"):
        reading(parts.machine_part(), "133762465120000000\n1\n", 1, CONTAINERS)
    assert reading(parts.machine_part(), "133762465120000000\n1\n", 1).networks == ()


def test_images_are_named_by_tag_and_digest_and_none_while_containerd_is_silent() -> None:
    text = '{"images":[{"repoTags":["a:1"],"repoDigests":["a@sha256:1"]},{"repoTags":null},7]}'
    assert reading(parts.images_part(), text).images == {"a:1", "a@sha256:1"}
    assert reading(parts.images_part(), "E1116 cannot connect").images == frozenset()


def test_pods_are_known_by_their_ids_and_none_while_containerd_is_silent() -> None:
    text = '{"items":[{"id":"a1","state":"SANDBOX_READY"},{"id":"b2"}]}'
    assert reading(parts.pods_part(), text).pods == {"a1", "b2"}
    assert reading(parts.pods_part(), "E1116 cannot connect").pods == frozenset()


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (parts.windows_part(), "ERROR: The system was unable to find the key."),
        (parts.windows_part(), WINDOWS.replace("20348", "many")),
        (parts.name_part(), ""),
        (parts.machine_part(), "'powershell.exe' is not recognized"),
        (parts.feature_part("Containers"), "Elevated permissions are required"),
        (parts.feature_part("Containers"), FEATURE.format("Sleepy")),
        (parts.service_part("kubelet"), KUBELET + "[SC] 1072"),
    ],
)
def test_what_no_windows_says_is_a_sentence(part: Part, text: str) -> None:
    with pytest.raises(OddAnswer) as caught:
        reading(part, text)
    assert str(caught.value).endswith((".", "Get-Date"))


QUESTION = Question((r"C:\k",), (r"C:\k\a",), ("kubelet",), ("Containers",), images=True)
_PIECES = st.sampled_from(
    [WINDOWS, KUBELET, QUERY, MISSING, FEATURE.format("Enabled"), "there\n", '{"images":', "7\n8\n"]
)
_TEXTS = st.lists(st.one_of(st.text(max_size=40), _PIECES), max_size=3).map("".join)


@given(st.data())
def test_no_answer_is_a_traceback(data: st.DataObject) -> None:
    parts = every_part(QUESTION)
    answers = [Section(data.draw(_TEXTS), data.draw(st.sampled_from([0, 1, 1060]))) for _ in parts]
    with suppress(WinpodError):
        assert read_answers(NONE, parts, answers).hostname


@given(st.binary(max_size=80))
def test_failure_actions_of_any_bytes_are_read_as_far_as_they_go(data: bytes) -> None:
    reset, restarts = read_failure_actions(data)
    assert reset >= 0
    assert len(restarts) <= max(0, len(data) - 20) // 8


@given(st.binary(max_size=200))
def test_any_bytes_are_text(data: bytes) -> None:
    assert "\r" not in decode(data)
    read_values(decode(data))


def test_text_of_an_old_code_page_is_read() -> None:
    assert decode("Größe\r\n".encode("cp437")) == "Größe\n"


def test_a_network_has_its_id() -> None:
    said = '1\n2\n{"ID":"0E2","Name":"nat","Type":"NAT"}'
    assert reading(parts.machine_part(), said, 0, CONTAINERS).networks == (
        Network("0E2", "nat", "NAT"),
    )

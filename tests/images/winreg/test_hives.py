import logging
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hivex import (
    Keys,
    empty_hive,
    key_at,
    make_hive,
    value_at,
    with_big_data,
    with_checksum,
    with_deleted_value,
    with_key_mark,
)
from tests.support.registry_layers import layer
from tests.support.wine_registry_files import EMPTY, SYSTEM, USER, VERSION
from winpod.errors import WinpodError
from winpod.images.errors import CorruptContent
from winpod.images.winreg.hive_rules import RULES, HiveRule, ImportPolicy, rule_for
from winpod.images.winreg.hives import DeltaKind, apply_hives, compose_registry, read_hive
from winpod.images.winreg.wine_registry import RegistryFile, RegistryValue, ValueType, WineRegistry
from winpod.windows.builds import parse_build

ENVIRONMENT = r"ControlSet001\Control\Session Manager\Environment"
IN_WINE = rf"System\{ENVIRONMENT}"
SERVICES = r"ControlSet001\Services"

# The keys of a Wine prefix that the rules are about.
OWN = {
    IN_WINE: {
        "PATH": RegistryValue(ValueType.EXPAND_SZ, "%SystemRoot%\\system32\0".encode("utf-16-le")),
        "ComSpec": RegistryValue.text(r"C:\windows\system32\cmd.exe"),
        "NUMBER_OF_PROCESSORS": RegistryValue.text("2"),
    },
    r"System\ControlSet001\Services\RpcSs": {
        "ImagePath": RegistryValue.text(r"C:\windows\system32\rpcss.exe"),
        "Start": RegistryValue.dword(3),
    },
    r"Software\Classes\CLSID\{1}\InprocServer32": {"": RegistryValue.text("wines.dll")},
    r"Software\Microsoft\Windows NT\CurrentVersion\SvcHost": {
        "netsvcs": RegistryValue.text("BITS")
    },
    r"Software\Microsoft\Settings": {"wines": RegistryValue.dword(1)},
}


def registry() -> WineRegistry:
    system = RegistryFile(SYSTEM)
    for key, values in OWN.items():
        system.set(key, values)
    user = RegistryFile(USER)
    user.set("Environment", {"TEMP": RegistryValue.text(r"C:\users\wine\Temp")})
    return WineRegistry(system, user, RegistryFile(EMPTY))


def applied(*layers: Path) -> tuple[WineRegistry, list[str]]:
    result = registry()
    notes = apply_hives(result, [one / "Hives" for one in layers])
    return result, notes


def hive_of(place: Path, keys: Keys) -> bytes:
    return make_hive(place / "hive", keys).read_bytes()


def expand(text: str) -> RegistryValue:
    return RegistryValue(ValueType.EXPAND_SZ, (text + "\0").encode("utf-16-le"))


EVERY_TYPE = {
    "": RegistryValue.text("the default"),
    "text": RegistryValue.text("C:\\java 17"),
    "no text": RegistryValue.text(""),
    "expand": expand(r"%ProgramFiles%\app"),
    "list": RegistryValue(ValueType.MULTI_SZ, "one\0two\0\0".encode("utf-16-le")),
    "no list": RegistryValue(ValueType.MULTI_SZ, b"\0\0"),
    "dword": RegistryValue.dword(0xFFFFFFFE),
    "qword": RegistryValue(ValueType.QWORD, bytes(range(8))),
    "bytes": RegistryValue(ValueType.BINARY, b"\xff\0\x01" * 100),
    "one byte": RegistryValue(ValueType.BINARY, b"\x07"),
    "three bytes": RegistryValue(ValueType.BINARY, b"\x07\x08\x09"),
    "no bytes": RegistryValue(ValueType.BINARY, b""),
    "none": RegistryValue(ValueType.NONE, b""),
    "another type": RegistryValue(0x12, b"abcdef"),
    "été": RegistryValue.text("Latin-1"),
    "ключ 🌍": RegistryValue.text("日本語 🌍"),
    'quoted "\\" name': RegistryValue.dword(1),
    "not a string": RegistryValue(ValueType.SZ, b"abc"),
}


def test_values_are_imported_with_types_and_names(tmp_path: Path) -> None:
    one = layer(
        tmp_path,
        Software_Delta={r"Äpfel\🌍\deep\er": EVERY_TYPE},
        System_Delta={ENVIRONMENT: EVERY_TYPE},
        DefaultUser_Delta={r"Software\App": EVERY_TYPE},
    )
    result, notes = applied(one)
    assert result.system.values(r"Software\Äpfel\🌍\deep\er") == EVERY_TYPE
    assert result.system.values(IN_WINE) == {**OWN[IN_WINE], **EVERY_TYPE}
    assert result.user.values(r"Software\App") == EVERY_TYPE
    assert result.default_user.values(r"Software\App") == EVERY_TYPE
    assert notes == []


def test_environment_variables_are_imported_to_wines_key(tmp_path: Path) -> None:
    path = expand(r"%SystemRoot%\system32;C:\java\bin")
    one = layer(
        tmp_path,
        System_Delta={ENVIRONMENT: {"JAVA_HOME": RegistryValue.text("C:\\java"), "Path": path}},
    )
    result, _ = applied(one)
    current = r"System\CurrentControlSet\Control\Session Manager\Environment"
    assert result.system.values(current) == {
        "Path": path,
        "ComSpec": OWN[IN_WINE]["ComSpec"],
        "NUMBER_OF_PROCESSORS": RegistryValue.text("2"),
        "JAVA_HOME": RegistryValue.text("C:\\java"),
    }


def test_user_variables_of_the_image_are_imported(tmp_path: Path) -> None:
    result, _ = applied(
        layer(tmp_path, DefaultUser_Delta={"Environment": {"A": RegistryValue.text("1")}})
    )
    assert result.user.values("Environment") == {
        "TEMP": RegistryValue.text(r"C:\users\wine\Temp"),
        "A": RegistryValue.text("1"),
    }
    assert result.default_user.values("Environment") == {"A": RegistryValue.text("1")}


def test_upper_layer_wins_case_insensitively(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={
            r"App\Settings": {"a": RegistryValue.text("1"), "b": RegistryValue.text("1")},
            "Only1": {},
        },
    )
    upper = layer(
        tmp_path / "2",
        Software_Delta={
            r"APP\settings": {"B": RegistryValue.dword(2), "c": RegistryValue.text("2")},
            "Only2": {},
        },
    )
    bare = layer(tmp_path / "3")
    (bare / "Hives").rmdir()
    result, notes = applied(lower, upper, bare)
    assert result.system.values(r"Software\App\Settings") == {
        "a": RegistryValue.text("1"),
        "B": RegistryValue.dword(2),
        "c": RegistryValue.text("2"),
    }
    assert result.system.has_key(r"Software\Only1")
    assert result.system.has_key(r"Software\Only2")
    assert notes == []


def test_value_in_several_cells_is_joined(tmp_path: Path) -> None:
    content = os.urandom(16344 * 2 + 5)
    hive = with_big_data(
        hive_of(tmp_path, {"App": {"large": RegistryValue(3, b"12345678")}}), "large", content
    )
    (tmp_path / "hive").write_bytes(hive)
    as_hivex_sees_it = subprocess.run(
        ["hivexget", tmp_path / "hive", r"\App", "large"], capture_output=True, check=True
    )
    assert as_hivex_sees_it.stdout == content
    result, _ = applied(layer(tmp_path / "layer", Software_Delta=hive))
    assert result.system.value(r"Software\App", "large") == RegistryValue(ValueType.BINARY, content)


def test_large_value_in_an_old_hive_is_in_one_cell(tmp_path: Path) -> None:
    value = RegistryValue(ValueType.BINARY, os.urandom(40_000))
    path = make_hive(tmp_path / "hive", {"App": {"large": value}}, version=3)
    assert read_hive(path.read_bytes()).keys[1].values == {"large": value}


def test_a_key_with_thousands_of_keys_in_it(tmp_path: Path) -> None:
    keys = {rf"Many\{number:04}": {"n": RegistryValue.dword(number)} for number in range(1200)}
    result, _ = applied(layer(tmp_path, Software_Delta=keys))
    for number in range(1200):
        assert result.system.value(rf"Software\Many\{number:04}", "n") == RegistryValue.dword(
            number
        )


# Delta marks are set by hand according to the format's specification: hivex does not support them.


def test_deleted_key_removes_its_subkeys(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={"Gone": {"a": RegistryValue.dword(1)}, r"Gone\deep": {}, "Goner": {}},
    )
    hive = with_key_mark(hive_of(tmp_path, {"gone": {}}), "gone", DeltaKind.DELETED)
    result, notes = applied(lower, layer(tmp_path / "2", Software_Delta=hive))
    assert not result.system.has_key(r"Software\Gone")
    assert result.system.has_key(r"Software\Goner")
    assert notes == []


def test_upper_layer_restores_a_deleted_key(tmp_path: Path) -> None:
    gone = with_key_mark(hive_of(tmp_path, {"App": {}}), "App", DeltaKind.DELETED)
    result, _ = applied(
        layer(tmp_path / "1", Software_Delta={"App": {"a": RegistryValue.dword(1)}}),
        layer(tmp_path / "2", Software_Delta=gone),
        layer(tmp_path / "3", Software_Delta={"App": {"b": RegistryValue.dword(3)}}),
    )
    assert result.system.values(r"Software\App") == {"b": RegistryValue.dword(3)}


def test_key_that_replaces_values_keeps_subkeys(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={
            "App": {"a": RegistryValue.dword(1)},
            r"App\deep": {"x": RegistryValue.dword(1)},
        },
    )
    hive = hive_of(tmp_path, {"App": {"b": RegistryValue.dword(2)}})
    upper = layer(
        tmp_path / "2", Software_Delta=with_key_mark(hive, "App", DeltaKind.REPLACES_VALUES)
    )
    result, _ = applied(lower, upper)
    assert result.system.values(r"Software\App") == {"b": RegistryValue.dword(2)}
    assert result.system.has_key(r"Software\App\deep")


def test_key_that_replaces_its_tree_removes_subkeys(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={
            "App": {"a": RegistryValue.dword(1)},
            r"App\deep": {"x": RegistryValue.dword(1)},
        },
    )
    hive = hive_of(
        tmp_path,
        {"App": {"b": RegistryValue.dword(2)}, r"App\other": {"y": RegistryValue.dword(2)}},
    )
    for name in ("App", "other"):
        hive = with_key_mark(hive, name, DeltaKind.REPLACES_TREE)
    result, _ = applied(lower, layer(tmp_path / "2", Software_Delta=hive))
    assert result.system.values(r"Software\App") == {"b": RegistryValue.dword(2)}
    assert result.system.values(r"Software\App\other") == {"y": RegistryValue.dword(2)}
    assert not result.system.has_key(r"Software\App\deep")


def test_deleted_value_is_removed(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        System_Delta={
            ENVIRONMENT: {"GONE": RegistryValue.dword(1), "KEPT": RegistryValue.dword(1)}
        },
    )
    hive = with_deleted_value(
        hive_of(tmp_path, {ENVIRONMENT: {"Gone": RegistryValue.dword(2)}}), "Gone"
    )
    result, _ = applied(lower, layer(tmp_path / "2", System_Delta=hive))
    assert result.system.value(IN_WINE, "gone") is None
    assert result.system.value(IN_WINE, "kept") == RegistryValue.dword(1)


def test_delta_marks_do_not_remove_keys_of_wine(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"ControlSet001": {}, r"Temporary\InprocServer32": {}})
    system = with_key_mark(hive, "ControlSet001", DeltaKind.DELETED)
    software = hive_of(
        tmp_path, {r"Classes\CLSID\{1}": {}, "Microsoft": {"new": RegistryValue.dword(1)}}
    )
    software = with_key_mark(software, "{1}", DeltaKind.DELETED)
    software = with_key_mark(software, "Microsoft", DeltaKind.REPLACES_TREE)
    result, notes = applied(layer(tmp_path / "1", System_Delta=system, Software_Delta=software))
    for key, values in OWN.items():
        assert result.system.values(key) == values
    assert result.system.value(r"Software\Microsoft", "new") == RegistryValue.dword(1)
    assert [note.partition(": ")[2] for note in notes] == [
        r"skipped 1 of Software\Classes\CLSID: classes that Wine has are in Wine's own libraries.",
        r"skipped 1 of Software\Microsoft: it contains keys of Wine.",
        r"skipped 1 of System\ControlSet001: it contains keys of Wine.",
    ]


def test_services_are_imported_and_those_of_wine_are_kept(tmp_path: Path) -> None:
    service = {
        "ImagePath": expand(r"C:\app\service.exe --run"),
        "Start": RegistryValue.dword(2),
        "Type": RegistryValue.dword(0x10),
        "DependOnService": RegistryValue(ValueType.MULTI_SZ, "RpcSs\0\0".encode("utf-16-le")),
    }
    one = layer(
        tmp_path,
        System_Delta={
            rf"{SERVICES}\app": service,
            rf"{SERVICES}\app\Parameters": {"Port": RegistryValue.dword(80)},
            rf"{SERVICES}\rpcss": {
                "Start": RegistryValue.dword(2),
                "Note": RegistryValue.text("new"),
            },
        },
    )
    result, notes = applied(one)
    assert result.system.values(rf"System\{SERVICES}\App") == service
    assert result.system.value(rf"System\{SERVICES}\app\parameters", "port") == RegistryValue.dword(
        80
    )
    assert result.system.values(rf"System\{SERVICES}\RpcSs") == {
        **OWN[rf"System\{SERVICES}\RpcSs"],
        "Note": RegistryValue.text("new"),
    }
    assert notes == [
        f"System_Delta of layer {tmp_path.name}: skipped 1 of System\\{SERVICES}: "
        "a service that Wine has is Wine's own."
    ]


def test_upper_layer_changes_a_service_of_a_lower_one(tmp_path: Path) -> None:
    key = rf"{SERVICES}\app"
    result, notes = applied(
        layer(tmp_path / "1", System_Delta={key: {"Start": RegistryValue.dword(2)}}),
        layer(tmp_path / "2", System_Delta={key: {"Start": RegistryValue.dword(4)}}),
    )
    assert result.system.value(rf"System\{key}", "Start") == RegistryValue.dword(4)
    assert notes == []


@pytest.mark.parametrize("kind", [1, 2, 8])
def test_drivers_are_skipped(tmp_path: Path, kind: int) -> None:
    key = rf"{SERVICES}\driver"
    one = layer(
        tmp_path,
        System_Delta={
            key: {"Type": RegistryValue.dword(kind)},
            rf"{key}\Enum": {"Count": RegistryValue.dword(1)},
        },
    )
    result, notes = applied(one)
    assert not result.system.has_key(rf"System\{key}")
    assert "2 of" in notes[0]
    assert "a container has no kernel to load a driver into" in notes[0]


def test_processor_variables_are_those_of_the_host(tmp_path: Path) -> None:
    values = {"NUMBER_OF_PROCESSORS": RegistryValue.text("64"), "A": RegistryValue.text("1")}
    result, notes = applied(layer(tmp_path, System_Delta={ENVIRONMENT: values}))
    assert result.system.value(IN_WINE, "NUMBER_OF_PROCESSORS") == RegistryValue.text("2")
    assert result.system.value(IN_WINE, "A") == RegistryValue.text("1")
    assert "the processor is that of the host" in notes[0]


def test_links_are_skipped(tmp_path: Path) -> None:
    hive = hive_of(
        tmp_path, {"CurrentControlSet": {}, "Linked": {"Link": RegistryValue(6, b"A\0")}}
    )
    for name in ("CurrentControlSet", "Linked"):
        at = key_at(hive, name) + 2
        hive = hive[:at] + b"\x30\0" + hive[at + 2 :]
    result, notes = applied(layer(tmp_path / "1", System_Delta=hive))
    assert not result.system.has_key(r"System\Linked")
    assert notes == [
        "System_Delta of layer 1: skipped 2 of the links: links between keys are Wine's."
    ]


def test_rules_apply_to_the_target_of_a_link(tmp_path: Path) -> None:
    one = layer(
        tmp_path,
        System_Delta={
            r"CurrentControlSet\Enum\ROOT": {"x": RegistryValue.dword(1)},
            r"CurrentControlSet\Control\FileSystem": {"LongPathsEnabled": RegistryValue.dword(1)},
        },
    )
    result, notes = applied(one)
    assert not result.system.has_key(r"System\ControlSet001\Enum\ROOT")
    assert result.system.values(r"System\ControlSet001\Control\FileSystem")
    assert r"skipped 1 of System\ControlSet001\Enum: " in notes[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_rule_is_enforced(rule: HiveRule, tmp_path: Path) -> None:
    key, policy = rule.key, rule.policy
    root, _, path = key.partition("\\")
    hive = {"System": "System_Delta", "Software": "Software_Delta", "User": "DefaultUser_Delta"}[
        root
    ]
    own = path if root == "User" else key
    result = registry()
    for file in (result.system, result.user, result.default_user):
        file.set(own, {"wines": RegistryValue.text("wine")})
    values = {"wines": RegistryValue.text("image"), "new": RegistryValue.text("image")}
    one = layer(tmp_path, **{hive: {path.upper(): values, path + r"\below": values}})
    notes = apply_hives(result, [one / "Hives"])
    files = (result.user, result.default_user) if root == "User" else (result.system,)
    for file in files:
        assert file.value(own, "wines") == RegistryValue.text(
            "image" if policy is ImportPolicy.ALL else "wine"
        )
        assert (file.value(own, "new") is not None) == (policy is not ImportPolicy.NONE)
        assert file.has_key(own + r"\below") == (policy is not ImportPolicy.NONE)
    assert bool(notes) == (policy is not ImportPolicy.ALL)


def test_the_32_bit_view_has_the_same_rules() -> None:
    run = r"Software\Wow6432Node\Microsoft\Windows\CurrentVersion\Run\x"
    assert rule_for(run).policy is ImportPolicy.NONE
    assert rule_for(r"SOFTWARE\Classes\wow6432node\CLSID\{1}").policy is ImportPolicy.NEW
    assert rule_for(r"Software\Microsoft\Windows\CurrentVersion\Runner").policy is ImportPolicy.ALL


def test_docs_have_the_table_of_rules() -> None:
    page = (Path(__file__).parents[3] / "docs" / "windows-registry.md").read_text()
    for rule in RULES:
        assert f"| `{rule.key}` | {rule.policy.value} | {rule.reason} |" in page


def test_sam_security_base_and_other_files_are_skipped(tmp_path: Path) -> None:
    one = layer(
        tmp_path / "abc",
        Sam_Delta=b"any",
        Security_Delta=b"any",
        Software_Base=b"placeholder",
        Other=b"any",
    )
    result, notes = applied(one)
    assert result.files() == registry().files()
    assert notes == [
        "Sam_Delta of layer abc was skipped: the accounts of an image do not exist under Wine.",
        "Security_Delta of layer abc was skipped: "
        "the security policy of an image does not exist under Wine.",
    ]


def test_root_values_and_unclean_hive_are_reported(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"": {"x": RegistryValue.dword(1)}, "App": {}})
    hive = with_checksum(hive[:4] + struct.pack("<I", 7) + hive[8:])
    _, notes = applied(layer(tmp_path / "1", DefaultUser_Delta=hive))
    assert notes == [
        "DefaultUser_Delta of layer 1 was not closed cleanly and may lack its last changes.",
        "DefaultUser_Delta of layer 1: skipped 1 of the values of its root: "
        "Wine does not support them.",
    ]


SOUND = empty_hive()
DAMAGED = {
    "nothing": b"",
    "no hive": b"placeholder\n",
    "a header alone": SOUND[:4096],
    "a wrong checksum": SOUND[:508] + b"####" + SOUND[512:],
    "no root": SOUND[: key_at(SOUND, "ROOT")] + b"xx" + SOUND[key_at(SOUND, "ROOT") + 2 :],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_hive_is_named_and_changes_nothing(name: str, tmp_path: Path) -> None:
    sound = layer(tmp_path / "1", Software_Delta={"App": {"a": RegistryValue.dword(1)}})
    damaged = layer(tmp_path / "abc", Software_Delta={"App": {}}, System_Delta=DAMAGED[name])
    result = registry()
    with pytest.raises(CorruptContent, match=r"System_Delta of layer abc is not .*: it is damaged"):
        apply_hives(result, [sound / "Hives", damaged / "Hives"])
    assert result.files() == registry().files()


def test_names_that_windows_does_not_allow_are_rejected(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {r"ab\cd": {}})
    with pytest.raises(CorruptContent, match="a name that Windows does not allow"):
        read_hive(hive.replace(b"ab\0\0", b"a\\\0\0"))


def test_hive_without_a_root_is_rejected() -> None:
    with pytest.raises(CorruptContent, match="it has no root key"):
        read_hive(with_checksum(SOUND[:36] + bytes(4) + SOUND[40:]))


def test_cyclic_key_is_rejected(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {r"outer\inner": {}})
    outer, inner = (struct.pack("<I", key_at(hive, n) - 4 - 4096) for n in ("outer", "inner"))
    assert hive.count(inner) == 1
    with pytest.raises(CorruptContent, match="a key occurs twice"):
        read_hive(hive.replace(inner, outer))


def test_nesting_depth_is_limited(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"\\".join("a" * 600): {}})
    with pytest.raises(CorruptContent, match="nested deeper than 512"):
        read_hive(hive)


def test_content_larger_than_the_file_is_rejected(tmp_path: Path) -> None:
    """A thousand values refer to the same bytes."""
    values = {f"v{number}": RegistryValue(ValueType.BINARY, b"12345678") for number in range(1000)}
    hive = bytearray(
        hive_of(tmp_path, {"App": {**values, "large": RegistryValue(3, b"x" * 16000)}})
    )
    target = hive[value_at(hive, "large") + 4 : value_at(hive, "large") + 12]
    for name in values:
        at = value_at(hive, name) + 4
        hive[at : at + 8] = target
    start = time.process_time()
    with pytest.raises(CorruptContent, match="its content is larger than the file"):
        read_hive(bytes(hive))
    assert time.process_time() - start < 1


@pytest.fixture(scope="module")
def sound_hive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    keys = {rf"App\{number:02}\deep": dict(EVERY_TYPE) for number in range(20)}
    hive = hive_of(
        tmp_path_factory.mktemp("hive"), {**keys, "Big": {"big": RegistryValue(3, b"12345678")}}
    )
    return with_big_data(hive, "big", bytes(40_000))


@pytest.fixture(scope="module")
def used(sound_hive: bytes) -> list[int]:
    return [at for at, byte in enumerate(sound_hive) if byte]


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.sampled_from((b"\0", b"\xff", b"\x80", b"\xff" * 4, b"\0\0\0\x80", b" \0\0\0")),
        ),
        min_size=1,
        max_size=8,
    ),
    length=st.none() | st.floats(0, 1),
    is_signed=st.booleans(),
)
def test_any_damage_raises_corrupt_content(
    sound_hive: bytes,
    used: list[int],
    changes: list[tuple[float, bytes]],
    length: float | None,
    is_signed: bool,
) -> None:
    hive = bytearray(sound_hive)
    for place, new in changes:
        at = used[int(place * len(used))]
        hive[at : at + len(new)] = bytes(
            a ^ b for a, b in zip(hive[at : at + len(new)], new, strict=False)
        )
    if length is not None:
        del hive[int(length * len(hive)) :]
    data = with_checksum(bytes(hive)) if is_signed and len(hive) >= 512 else bytes(hive)
    try:
        read_hive(data, "System_Delta of layer abc")
    except WinpodError as error:
        message = str(error)
    else:
        return
    assert message.startswith("System_Delta of layer abc is not a readable registry hive: ")


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    outside = make_hive(tmp_path / "outside", {"App": {}})
    linked = layer(tmp_path / "1")
    (linked / "Hives" / "Software_Delta").symlink_to(outside)
    with pytest.raises(
        CorruptContent, match=r"1/Hives/Software_Delta cannot be read: Too many levels"
    ):
        applied(linked)
    piped = layer(tmp_path / "2")
    os.mkfifo(piped / "Hives" / "Software_Delta")
    with pytest.raises(CorruptContent, match="2/Hives/Software_Delta is not a file"):
        applied(piped)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "Hives").symlink_to(linked / "Hives")
    with pytest.raises(CorruptContent, match="3/Hives cannot be read"):
        applied(tmp_path / "3")


def test_container_has_the_registry_of_the_image_and_its_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    for name, data in registry().files().items():
        (prefix / name).write_bytes(data)
    one = layer(
        tmp_path / "1",
        System_Delta={ENVIRONMENT: {"A": RegistryValue.text("1")}},
        Software_Delta={
            r"Microsoft\Windows NT\CurrentVersion": {"CurrentBuild": RegistryValue.text("1")}
        },
        Sam_Delta=b"",
    )
    with caplog.at_level(logging.INFO):
        files = compose_registry(prefix, parse_build("10.0.17763.805"), [one]).files()
    assert list(files) == ["system.reg", "user.reg", "userdef.reg"]
    system = RegistryFile(files["system.reg"])
    assert system.value(IN_WINE, "A") == RegistryValue.text("1")
    assert system.value(VERSION, "CurrentBuild") == RegistryValue.text("17763")
    assert "Sam_Delta of layer 1 was skipped" in caplog.text
    assert (prefix / "system.reg").read_bytes() == registry().files()["system.reg"]


def test_changed_prefix_is_read_again(tmp_path: Path) -> None:
    build = parse_build("2022")
    for name, data in registry().files().items():
        (tmp_path / name).write_bytes(data)
    first = compose_registry(tmp_path, build, []).files()
    assert compose_registry(tmp_path, build, []).files() == first
    changed = registry().system
    changed.set("Software\\New", {"x": RegistryValue.dword(1)})
    (tmp_path / "system.reg").write_bytes(changed.to_bytes())
    assert b"[Software\\\\New]" in compose_registry(tmp_path, build, []).files()["system.reg"]
    (tmp_path / "user.reg").unlink()
    with pytest.raises(CorruptContent, match=r"user\.reg cannot be read"):
        compose_registry(tmp_path, build, [])

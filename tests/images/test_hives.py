import logging
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.images.hivex import (
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
from tests.images.test_wine_registry import EMPTY, SYSTEM, USER, VERSION
from winpod.images.errors import BadContent
from winpod.images.hive_reader import Mark, read_hive
from winpod.images.hive_rules import RULES, Taking, rule_for
from winpod.images.hives import apply_hives, compose_registry
from winpod.images.wine_registry import Kind, RegistryFile, Value, WineRegistry
from winpod.windows.builds import parse_build
from winpod.windows.errors import WinpodError

ENVIRONMENT = r"ControlSet001\Control\Session Manager\Environment"
IN_WINE = rf"System\{ENVIRONMENT}"
SERVICES = r"ControlSet001\Services"

# What a prefix of Wine has, as far as the rules are about it.
OWN = {
    IN_WINE: {
        "PATH": Value(Kind.EXPAND_SZ, "%SystemRoot%\\system32\0".encode("utf-16-le")),
        "ComSpec": Value.text(r"C:\windows\system32\cmd.exe"),
        "NUMBER_OF_PROCESSORS": Value.text("2"),
    },
    r"System\ControlSet001\Services\RpcSs": {
        "ImagePath": Value.text(r"C:\windows\system32\rpcss.exe"),
        "Start": Value.dword(3),
    },
    r"Software\Classes\CLSID\{1}\InprocServer32": {"": Value.text("wines.dll")},
    r"Software\Microsoft\Windows NT\CurrentVersion\SvcHost": {"netsvcs": Value.text("BITS")},
    r"Software\Microsoft\Settings": {"wines": Value.dword(1)},
}


def registry() -> WineRegistry:
    system = RegistryFile(SYSTEM)
    for key, values in OWN.items():
        system.set(key, values)
    user = RegistryFile(USER)
    user.set("Environment", {"TEMP": Value.text(r"C:\users\wine\Temp")})
    return WineRegistry(system, user, RegistryFile(EMPTY))


def layer(place: Path, **hives: Keys | bytes) -> Path:
    """An unpacked layer with the named hives in it."""
    (place / "Hives").mkdir(parents=True)
    for name, content in hives.items():
        if isinstance(content, bytes):
            (place / "Hives" / name).write_bytes(content)
        else:
            make_hive(place / "Hives" / name, content)
    return place


def applied(*layers: Path) -> tuple[WineRegistry, list[str]]:
    result = registry()
    notes = apply_hives(result, [one / "Hives" for one in layers])
    return result, notes


def hive_of(place: Path, keys: Keys) -> bytes:
    return make_hive(place / "hive", keys).read_bytes()


def expand(text: str) -> Value:
    return Value(Kind.EXPAND_SZ, (text + "\0").encode("utf-16-le"))


EVERY_TYPE = {
    "": Value.text("the default"),
    "text": Value.text("C:\\java 17"),
    "no text": Value.text(""),
    "expand": expand(r"%ProgramFiles%\app"),
    "list": Value(Kind.MULTI_SZ, "one\0two\0\0".encode("utf-16-le")),
    "no list": Value(Kind.MULTI_SZ, b"\0\0"),
    "dword": Value.dword(0xFFFFFFFE),
    "qword": Value(Kind.QWORD, bytes(range(8))),
    "bytes": Value(Kind.BINARY, b"\xff\0\x01" * 100),
    "one byte": Value(Kind.BINARY, b"\x07"),
    "three bytes": Value(Kind.BINARY, b"\x07\x08\x09"),
    "no bytes": Value(Kind.BINARY, b""),
    "none": Value(Kind.NONE, b""),
    "another type": Value(0x12, b"abcdef"),
    "été": Value.text("Latin-1"),
    "ключ 🌍": Value.text("日本語 🌍"),
    'quoted "\\" name': Value.dword(1),
    "not a string": Value(Kind.SZ, b"abc"),
}


def test_values_arrive_with_their_types_and_names(tmp_path: Path) -> None:
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


def test_environment_variables_are_found_where_wine_looks_for_them(tmp_path: Path) -> None:
    path = expand(r"%SystemRoot%\system32;C:\java\bin")
    one = layer(
        tmp_path, System_Delta={ENVIRONMENT: {"JAVA_HOME": Value.text("C:\\java"), "Path": path}}
    )
    result, _ = applied(one)
    current = r"System\CurrentControlSet\Control\Session Manager\Environment"
    assert result.system.values(current) == {
        "Path": path,
        "ComSpec": OWN[IN_WINE]["ComSpec"],
        "NUMBER_OF_PROCESSORS": Value.text("2"),
        "JAVA_HOME": Value.text("C:\\java"),
    }


def test_a_user_of_the_image_has_its_variables(tmp_path: Path) -> None:
    result, _ = applied(layer(tmp_path, DefaultUser_Delta={"Environment": {"A": Value.text("1")}}))
    assert result.user.values("Environment") == {
        "TEMP": Value.text(r"C:\users\wine\Temp"),
        "A": Value.text("1"),
    }
    assert result.default_user.values("Environment") == {"A": Value.text("1")}


def test_an_upper_layer_wins_whatever_the_case_of_its_names(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={r"App\Settings": {"a": Value.text("1"), "b": Value.text("1")}, "Only1": {}},
    )
    upper = layer(
        tmp_path / "2",
        Software_Delta={r"APP\settings": {"B": Value.dword(2), "c": Value.text("2")}, "Only2": {}},
    )
    bare = layer(tmp_path / "3")
    (bare / "Hives").rmdir()
    result, notes = applied(lower, upper, bare)
    assert result.system.values(r"Software\App\Settings") == {
        "a": Value.text("1"),
        "B": Value.dword(2),
        "c": Value.text("2"),
    }
    assert result.system.has_key(r"Software\Only1")
    assert result.system.has_key(r"Software\Only2")
    assert notes == []


def test_a_value_too_large_for_one_cell_is_put_together(tmp_path: Path) -> None:
    content = os.urandom(16344 * 2 + 5)
    hive = with_big_data(
        hive_of(tmp_path, {"App": {"large": Value(3, b"12345678")}}), "large", content
    )
    (tmp_path / "hive").write_bytes(hive)
    as_hivex_sees_it = subprocess.run(
        ["hivexget", tmp_path / "hive", r"\App", "large"], capture_output=True, check=True
    )
    assert as_hivex_sees_it.stdout == content
    result, _ = applied(layer(tmp_path / "layer", Software_Delta=hive))
    assert result.system.value(r"Software\App", "large") == Value(Kind.BINARY, content)


def test_a_large_value_in_an_old_hive_is_in_one_cell(tmp_path: Path) -> None:
    value = Value(Kind.BINARY, os.urandom(40_000))
    path = make_hive(tmp_path / "hive", {"App": {"large": value}}, version=3)
    assert read_hive(path.read_bytes()).keys[1].values == {"large": value}


def test_a_key_with_thousands_of_keys_in_it(tmp_path: Path) -> None:
    keys = {rf"Many\{number:04}": {"n": Value.dword(number)} for number in range(1200)}
    result, _ = applied(layer(tmp_path, Software_Delta=keys))
    for number in range(1200):
        assert result.system.value(rf"Software\Many\{number:04}", "n") == Value.dword(number)


# Marks are set by hand, as the specification of the format says: hivex does not know of them.


def test_a_key_marked_as_deleted_takes_all_below_it(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={"Gone": {"a": Value.dword(1)}, r"Gone\deep": {}, "Goner": {}},
    )
    hive = with_key_mark(hive_of(tmp_path, {"gone": {}}), "gone", Mark.DELETED)
    result, notes = applied(lower, layer(tmp_path / "2", Software_Delta=hive))
    assert not result.system.has_key(r"Software\Gone")
    assert result.system.has_key(r"Software\Goner")
    assert notes == []


def test_a_layer_brings_back_what_the_one_below_it_deleted(tmp_path: Path) -> None:
    gone = with_key_mark(hive_of(tmp_path, {"App": {}}), "App", Mark.DELETED)
    result, _ = applied(
        layer(tmp_path / "1", Software_Delta={"App": {"a": Value.dword(1)}}),
        layer(tmp_path / "2", Software_Delta=gone),
        layer(tmp_path / "3", Software_Delta={"App": {"b": Value.dword(3)}}),
    )
    assert result.system.values(r"Software\App") == {"b": Value.dword(3)}


def test_a_key_that_replaces_values_leaves_the_keys_below_it(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={"App": {"a": Value.dword(1)}, r"App\deep": {"x": Value.dword(1)}},
    )
    hive = hive_of(tmp_path, {"App": {"b": Value.dword(2)}})
    upper = layer(tmp_path / "2", Software_Delta=with_key_mark(hive, "App", Mark.REPLACES_VALUES))
    result, _ = applied(lower, upper)
    assert result.system.values(r"Software\App") == {"b": Value.dword(2)}
    assert result.system.has_key(r"Software\App\deep")


def test_a_key_that_replaces_its_tree_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1",
        Software_Delta={"App": {"a": Value.dword(1)}, r"App\deep": {"x": Value.dword(1)}},
    )
    hive = hive_of(tmp_path, {"App": {"b": Value.dword(2)}, r"App\other": {"y": Value.dword(2)}})
    for name in ("App", "other"):
        hive = with_key_mark(hive, name, Mark.REPLACES_TREE)
    result, _ = applied(lower, layer(tmp_path / "2", Software_Delta=hive))
    assert result.system.values(r"Software\App") == {"b": Value.dword(2)}
    assert result.system.values(r"Software\App\other") == {"y": Value.dword(2)}
    assert not result.system.has_key(r"Software\App\deep")


def test_a_value_marked_as_deleted_is_gone(tmp_path: Path) -> None:
    lower = layer(
        tmp_path / "1", System_Delta={ENVIRONMENT: {"GONE": Value.dword(1), "KEPT": Value.dword(1)}}
    )
    hive = with_deleted_value(hive_of(tmp_path, {ENVIRONMENT: {"Gone": Value.dword(2)}}), "Gone")
    result, _ = applied(lower, layer(tmp_path / "2", System_Delta=hive))
    assert result.system.value(IN_WINE, "gone") is None
    assert result.system.value(IN_WINE, "kept") == Value.dword(1)


def test_marks_take_nothing_away_that_wine_needs(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"ControlSet001": {}, r"Temporary\InprocServer32": {}})
    system = with_key_mark(hive, "ControlSet001", Mark.DELETED)
    software = hive_of(tmp_path, {r"Classes\CLSID\{1}": {}, "Microsoft": {"new": Value.dword(1)}})
    software = with_key_mark(software, "{1}", Mark.DELETED)
    software = with_key_mark(software, "Microsoft", Mark.REPLACES_TREE)
    result, notes = applied(layer(tmp_path / "1", System_Delta=system, Software_Delta=software))
    for key, values in OWN.items():
        assert result.system.values(key) == values
    assert result.system.value(r"Software\Microsoft", "new") == Value.dword(1)
    assert [note.partition(": ")[2] for note in notes] == [
        r"1 of Software\Classes\CLSID left out: classes that Wine has are in Wine's own libraries.",
        r"1 of Software\Microsoft left out: it holds keys that are Wine's.",
        r"1 of System\ControlSet001 left out: it holds keys that are Wine's.",
    ]


def test_services_of_the_image_arrive_and_those_of_wine_stay(tmp_path: Path) -> None:
    service = {
        "ImagePath": expand(r"C:\app\service.exe --run"),
        "Start": Value.dword(2),
        "Type": Value.dword(0x10),
        "DependOnService": Value(Kind.MULTI_SZ, "RpcSs\0\0".encode("utf-16-le")),
    }
    one = layer(
        tmp_path,
        System_Delta={
            rf"{SERVICES}\app": service,
            rf"{SERVICES}\app\Parameters": {"Port": Value.dword(80)},
            rf"{SERVICES}\rpcss": {"Start": Value.dword(2), "Note": Value.text("new")},
        },
    )
    result, notes = applied(one)
    assert result.system.values(rf"System\{SERVICES}\App") == service
    assert result.system.value(rf"System\{SERVICES}\app\parameters", "port") == Value.dword(80)
    assert result.system.values(rf"System\{SERVICES}\RpcSs") == {
        **OWN[rf"System\{SERVICES}\RpcSs"],
        "Note": Value.text("new"),
    }
    assert notes == [
        f"System_Delta of layer {tmp_path.name}: 1 of System\\{SERVICES} left out: "
        "a service that Wine has is Wine's own."
    ]


def test_an_upper_layer_changes_a_service_of_a_lower_one(tmp_path: Path) -> None:
    key = rf"{SERVICES}\app"
    result, notes = applied(
        layer(tmp_path / "1", System_Delta={key: {"Start": Value.dword(2)}}),
        layer(tmp_path / "2", System_Delta={key: {"Start": Value.dword(4)}}),
    )
    assert result.system.value(rf"System\{key}", "Start") == Value.dword(4)
    assert notes == []


@pytest.mark.parametrize("kind", [1, 2, 8])
def test_drivers_are_left_out(tmp_path: Path, kind: int) -> None:
    key = rf"{SERVICES}\driver"
    one = layer(
        tmp_path,
        System_Delta={key: {"Type": Value.dword(kind)}, rf"{key}\Enum": {"Count": Value.dword(1)}},
    )
    result, notes = applied(one)
    assert not result.system.has_key(rf"System\{key}")
    assert "2 of" in notes[0]
    assert "a container has no kernel to load a driver into" in notes[0]


def test_the_processors_are_those_of_the_machine(tmp_path: Path) -> None:
    values = {"NUMBER_OF_PROCESSORS": Value.text("64"), "A": Value.text("1")}
    result, notes = applied(layer(tmp_path, System_Delta={ENVIRONMENT: values}))
    assert result.system.value(IN_WINE, "NUMBER_OF_PROCESSORS") == Value.text("2")
    assert result.system.value(IN_WINE, "A") == Value.text("1")
    assert "the processors are those of the machine" in notes[0]


def test_links_are_not_taken_over(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"CurrentControlSet": {}, "Linked": {"Link": Value(6, b"A\0")}})
    for name in ("CurrentControlSet", "Linked"):
        at = key_at(hive, name) + 2
        hive = hive[:at] + b"\x30\0" + hive[at + 2 :]
    result, notes = applied(layer(tmp_path / "1", System_Delta=hive))
    assert not result.system.has_key(r"System\Linked")
    assert notes == [
        "System_Delta of layer 1: 2 of the links left out: links between keys are Wine's."
    ]


def test_a_way_through_a_link_has_the_rules_of_where_it_leads(tmp_path: Path) -> None:
    one = layer(
        tmp_path,
        System_Delta={
            r"CurrentControlSet\Enum\ROOT": {"x": Value.dword(1)},
            r"CurrentControlSet\Control\FileSystem": {"LongPathsEnabled": Value.dword(1)},
        },
    )
    result, notes = applied(one)
    assert not result.system.has_key(r"System\ControlSet001\Enum\ROOT")
    assert result.system.values(r"System\ControlSet001\Control\FileSystem")
    assert r"System\ControlSet001\Enum left out" in notes[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_every_rule_holds(rule: object, tmp_path: Path) -> None:
    key, taking = rule.key, rule.taking  # type: ignore[attr-defined]
    root, _, path = key.partition("\\")
    hive = {"System": "System_Delta", "Software": "Software_Delta", "User": "DefaultUser_Delta"}[
        root
    ]
    own = path if root == "User" else key
    result = registry()
    for file in (result.system, result.user, result.default_user):
        file.set(own, {"wines": Value.text("wine")})
    values = {"wines": Value.text("image"), "new": Value.text("image")}
    one = layer(tmp_path, **{hive: {path.upper(): values, path + r"\below": values}})
    notes = apply_hives(result, [one / "Hives"])
    files = (result.user, result.default_user) if root == "User" else (result.system,)
    for file in files:
        assert file.value(own, "wines") == Value.text("image" if taking is Taking.ALL else "wine")
        assert (file.value(own, "new") is not None) == (taking is not Taking.NOTHING)
        assert file.has_key(own + r"\below") == (taking is not Taking.NOTHING)
    assert bool(notes) == (taking is not Taking.ALL)


def test_the_32_bit_view_has_the_same_rules() -> None:
    run = r"Software\Wow6432Node\Microsoft\Windows\CurrentVersion\Run\x"
    assert rule_for(run).taking is Taking.NOTHING
    assert rule_for(r"SOFTWARE\Classes\wow6432node\CLSID\{1}").taking is Taking.NEW
    assert rule_for(r"Software\Microsoft\Windows\CurrentVersion\Runner").taking is Taking.ALL


def test_the_page_on_the_registry_has_the_table_of_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "registry.md").read_text()
    for rule in RULES:
        assert f"| `{rule.key}` | {rule.taking.value} | {rule.reason} |" in page


def test_accounts_bases_and_other_files_are_left_alone(tmp_path: Path) -> None:
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
        "Sam_Delta of layer abc was left out: the accounts of an image do not exist under Wine.",
        "Security_Delta of layer abc was left out: "
        "the security policy of an image does not exist under Wine.",
    ]


def test_values_of_the_root_and_an_unclosed_hive_are_told(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"": {"x": Value.dword(1)}, "App": {}})
    hive = with_checksum(hive[:4] + struct.pack("<I", 7) + hive[8:])
    _, notes = applied(layer(tmp_path / "1", DefaultUser_Delta=hive))
    assert notes == [
        "DefaultUser_Delta of layer 1 was not closed by Windows, and may lack its last changes.",
        "DefaultUser_Delta of layer 1: 1 of the values of its root left out: "
        "Wine has no place for them.",
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
def test_a_damaged_hive_is_named_and_changes_nothing(name: str, tmp_path: Path) -> None:
    sound = layer(tmp_path / "1", Software_Delta={"App": {"a": Value.dword(1)}})
    damaged = layer(tmp_path / "abc", Software_Delta={"App": {}}, System_Delta=DAMAGED[name])
    result = registry()
    with pytest.raises(BadContent, match=r"System_Delta of layer abc is no .*: it is damaged"):
        apply_hives(result, [sound / "Hives", damaged / "Hives"])
    assert result.files() == registry().files()


def test_names_that_windows_does_not_allow_are_refused(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {r"ab\cd": {}})
    with pytest.raises(BadContent, match="a name that Windows does not allow"):
        read_hive(hive.replace(b"ab\0\0", b"a\\\0\0"))


def test_a_hive_without_a_root_is_refused() -> None:
    with pytest.raises(BadContent, match="it has no root"):
        read_hive(with_checksum(SOUND[:36] + bytes(4) + SOUND[40:]))


def test_a_key_that_is_in_itself_is_refused(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {r"outer\inner": {}})
    outer, inner = (struct.pack("<I", key_at(hive, n) - 4 - 4096) for n in ("outer", "inner"))
    assert hive.count(inner) == 1
    with pytest.raises(BadContent, match="a key is in it twice"):
        read_hive(hive.replace(inner, outer))


def test_keys_cannot_be_nested_without_end(tmp_path: Path) -> None:
    hive = hive_of(tmp_path, {"\\".join("a" * 600): {}})
    with pytest.raises(BadContent, match="nested deeper than 512"):
        read_hive(hive)


def test_a_hive_holds_no_more_than_fits_in_it(tmp_path: Path) -> None:
    """A thousand values that all point at the same bytes."""
    values = {f"v{number}": Value(Kind.BINARY, b"12345678") for number in range(1000)}
    hive = bytearray(hive_of(tmp_path, {"App": {**values, "large": Value(3, b"x" * 16000)}}))
    target = hive[value_at(hive, "large") + 4 : value_at(hive, "large") + 12]
    for name in values:
        at = value_at(hive, name) + 4
        hive[at : at + 8] = target
    start = time.process_time()
    with pytest.raises(BadContent, match="more than there is room for"):
        read_hive(bytes(hive))
    assert time.process_time() - start < 1


@pytest.fixture(scope="module")
def sound_hive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    keys = {rf"App\{number:02}\deep": dict(EVERY_TYPE) for number in range(20)}
    hive = hive_of(tmp_path_factory.mktemp("hive"), {**keys, "Big": {"big": Value(3, b"12345678")}})
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
def test_no_damage_raises_anything_but_a_sentence(
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
    assert message.startswith("System_Delta of layer abc is no registry hive that can be read: ")


def test_nothing_is_read_through_a_link_or_from_a_pipe(tmp_path: Path) -> None:
    outside = make_hive(tmp_path / "outside", {"App": {}})
    linked = layer(tmp_path / "1")
    (linked / "Hives" / "Software_Delta").symlink_to(outside)
    with pytest.raises(BadContent, match=r"1/Hives/Software_Delta cannot be read: Too many levels"):
        applied(linked)
    piped = layer(tmp_path / "2")
    os.mkfifo(piped / "Hives" / "Software_Delta")
    with pytest.raises(BadContent, match="2/Hives/Software_Delta is not a file"):
        applied(piped)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "Hives").symlink_to(linked / "Hives")
    with pytest.raises(BadContent, match="3/Hives cannot be read"):
        applied(tmp_path / "3")


def test_a_container_has_the_image_s_registry_and_its_own_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    for name, data in registry().files().items():
        (prefix / name).write_bytes(data)
    one = layer(
        tmp_path / "1",
        System_Delta={ENVIRONMENT: {"A": Value.text("1")}},
        Software_Delta={r"Microsoft\Windows NT\CurrentVersion": {"CurrentBuild": Value.text("1")}},
        Sam_Delta=b"",
    )
    with caplog.at_level(logging.INFO):
        files = compose_registry(prefix, parse_build("10.0.17763.805"), [one]).files()
    assert list(files) == ["system.reg", "user.reg", "userdef.reg"]
    system = RegistryFile(files["system.reg"])
    assert system.value(IN_WINE, "A") == Value.text("1")
    assert system.value(VERSION, "CurrentBuild") == Value.text("17763")
    assert "Sam_Delta of layer 1 was left out" in caplog.text
    assert (prefix / "system.reg").read_bytes() == registry().files()["system.reg"]


def test_a_prefix_is_read_again_when_it_was_written(tmp_path: Path) -> None:
    build = parse_build("2022")
    for name, data in registry().files().items():
        (tmp_path / name).write_bytes(data)
    first = compose_registry(tmp_path, build, []).files()
    assert compose_registry(tmp_path, build, []).files() == first
    changed = registry().system
    changed.set("Software\\New", {"x": Value.dword(1)})
    (tmp_path / "system.reg").write_bytes(changed.to_bytes())
    assert b"[Software\\\\New]" in compose_registry(tmp_path, build, []).files()["system.reg"]
    (tmp_path / "user.reg").unlink()
    with pytest.raises(BadContent, match=r"user\.reg cannot be read"):
        compose_registry(tmp_path, build, [])

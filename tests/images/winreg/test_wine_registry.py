import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wine_registry_files import EMPTY, SYSTEM, USER, VERSION
from winpod.errors import InvalidInput
from winpod.images.errors import CorruptContent
from winpod.images.winreg.wine_registry import (
    RegistryFile,
    RegistryValue,
    ValueType,
    WineRegistry,
    casefold_key,
    with_build,
)
from winpod.windows.builds import RELEASES, parse_build

ODD = r"Software\Odd\with [brackets]"


def text(value: RegistryValue | None) -> str:
    assert value
    assert value.kind == ValueType.SZ
    return value.data.decode("utf-16-le").removesuffix("\0")


def registry() -> WineRegistry:
    return WineRegistry(RegistryFile(SYSTEM), RegistryFile(USER), RegistryFile(EMPTY))


def test_unchanged_content_is_written_unchanged() -> None:
    for data in (SYSTEM, USER, EMPTY, SYSTEM.rstrip(b"\n"), EMPTY + b"\n[A]\n\n\n[B] 1\n\n"):
        assert RegistryFile(data).to_bytes() == data


def test_every_value_format_of_wine_round_trips() -> None:
    data = SYSTEM.replace(b"#link", b"#none")
    file = RegistryFile(data)
    copy = RegistryFile(data)
    for key in file.keys():  # noqa: SIM118 - not a dict
        copy.set(key, file.values(key))
    assert copy.to_bytes() == data


def test_values_have_types_and_bytes() -> None:
    values = RegistryFile(SYSTEM).values(ODD)
    assert values == {
        "": RegistryValue.text("the default"),
        'été "a\\b"': RegistryValue(
            ValueType.EXPAND_SZ, "%SystemRoot%\\system32\0".encode("utf-16-le")
        ),
        "cafée": RegistryValue.text("tab\tline\nend€"),
        "list": RegistryValue(ValueType.MULTI_SZ, "one\0two\x003\0\0".encode("utf-16-le")),
        "empty": RegistryValue.text(""),
        "bytes": RegistryValue(ValueType.BINARY, b""),
        "large": RegistryValue(ValueType.QWORD, bytes.fromhex("0100000000000080")),
        "unterminated": RegistryValue(ValueType.SZ, b"A\0B"),
        "odd type": RegistryValue(0xFFFF0012, b"A\0"),
    }
    number = RegistryFile(SYSTEM).value(VERSION, "DigitalProductId")
    assert number == RegistryValue(ValueType.BINARY, bytes(18) + bytes(range(1, 26)) + b"\xff")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (r"software\ODD\With [Brackets]", 'ÉTÉ "A\\B"'),
        (r"Software\Odd\with [brackets]", "CAFÉE"),
        (r"CONTROL PANEL\international\🌎🌏🌍", "currencies"),
    ],
)
def test_names_are_case_insensitive(key: str, name: str) -> None:
    file = RegistryFile(SYSTEM)
    assert file.has_key(key)
    assert file.value(key, name)
    before = len(file.values(key))
    file.set(key, {name: RegistryValue.dword(7)})
    assert len(file.values(key)) == before
    assert file.values(key)[name] == RegistryValue.dword(7)


def test_links_in_paths_are_followed() -> None:
    file = RegistryFile(SYSTEM)
    assert text(file.value(r"System\CurrentControlSet\Control\ProductOptions", "producttype"))
    file.set(r"SYSTEM\currentcontrolset\Services\app", {"Start": RegistryValue.dword(2)})
    assert rb"[System\\ControlSet001\Services".replace(rb"1\S", rb"1\\S") in file.to_bytes()
    assert file.value(r"System\ControlSet001\Services\App", "START") == RegistryValue.dword(2)


def test_circular_links_are_an_error() -> None:
    target = "\\Registry\\Machine\\A".encode("utf-16-le").hex(",").encode()
    file = RegistryFile(EMPTY + b'\n[A]\n#link\n"SymbolicLinkValue"=hex(6):' + target + b"\n")
    with pytest.raises(CorruptContent, match=r'circular links at "A\\B"'):
        file.has_key(r"A\B")


def test_key_with_only_subkeys_exists() -> None:
    file = RegistryFile(SYSTEM)
    assert file.has_key(r"Software\Microsoft")
    assert not file.has_key(r"Software\Micro")
    assert file.values(r"Software\Microsoft") == {}
    assert file.value(r"Software\None", "x") is None


def test_remove_key_removes_subkeys_and_keeps_the_parent() -> None:
    file = RegistryFile(SYSTEM)
    file.set(r"Software\Odd\with [brackets]\deep\deeper", {"x": RegistryValue.dword(1)})
    file.set(r"Software\Odd\with [brackets] too", {"x": RegistryValue.dword(1)})
    file.remove_key(r"SOFTWARE\odd\with [brackets]")
    again = RegistryFile(file.to_bytes())
    assert not again.has_key(ODD)
    assert again.has_key(r"Software\Odd\with [brackets] too")
    file.remove_key(r"Software\Odd\with [brackets] too")
    file.remove_key(r"Software\Never")
    again = RegistryFile(file.to_bytes())
    assert list(again.keys())[-1] == r"Software\Odd"
    file.set(ODD, {"x": RegistryValue.dword(2)})
    assert RegistryFile(file.to_bytes()).values(ODD) == {"x": RegistryValue.dword(2)}


def test_remove_values_keeps_other_values() -> None:
    file = RegistryFile(SYSTEM)
    file.remove_values(VERSION, "DIGITALPRODUCTID", "CurrentBuild", "never there")
    file.remove_values("Never", "x")
    values = RegistryFile(file.to_bytes()).values(VERSION)
    assert "DigitalProductId" not in values
    assert "CurrentBuild" not in values
    assert text(values["CurrentBuildNumber"]) == "19043"


def test_duplicate_sections_are_merged() -> None:
    file = RegistryFile(EMPTY + b'\n[A] 1\n"x"="1"\n"y"="1"\n\n[a] 2\n"X"="2"\n')
    assert {name: text(value) for name, value in file.values("A").items()} == {"X": "2", "y": "1"}
    file.remove_values("A", "x")
    assert RegistryFile(file.to_bytes()).values("a") == {"y": RegistryValue.text("1")}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not a Wine registry file"),
        (b"REGEDIT4\n[A]\n", "is not a Wine registry file"),
        (EMPTY + b'\n[A\n"x"="1"\n', r'has an unterminated key: "\[A"'),
        (EMPTY + b"\n[A\\]\n", r"has an unterminated key"),
        (EMPTY + b"\n[abc", r"has an unterminated key"),
    ],
)
def test_invalid_registry_file_is_rejected(data: bytes, sentence: str) -> None:
    with pytest.raises(CorruptContent, match=sentence):
        RegistryFile(data, "system.reg")


@pytest.mark.parametrize(
    "line", [b'"x"="unended', b'"x"=hex:0', b'"x"=hex:zz', b'"x"=dword:', b'"x"=what:1', b'"x"=1']
)
def test_invalid_value_is_an_error_and_is_kept(line: bytes) -> None:
    data = EMPTY + b"\n[A] 1\n" + line + b"\n"
    file = RegistryFile(data, "system.reg")
    with pytest.raises(CorruptContent, match=r"^system\.reg has "):
        file.value("A", "x")
    file.set("A", {"y": RegistryValue.dword(1)})
    assert line in file.to_bytes()


@pytest.mark.parametrize("key", ["", "A\\\\B", "A\\", "n" * 256, "A\\" + "🌍" * 128])
def test_invalid_names_are_rejected(key: str) -> None:
    file = RegistryFile(EMPTY)
    with pytest.raises(InvalidInput, match="is not a valid registry key"):
        file.set(key, {})
    with pytest.raises(InvalidInput, match="has 16384 characters"):
        file.set("A", {"n" * 16384: RegistryValue.dword(1)})


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.short_name)
def test_every_release_has_its_version_values(release: object) -> None:
    build = release.build  # type: ignore[attr-defined]
    file = with_build(registry(), build).system
    values = {name.upper(): value for name, value in file.values(VERSION).items()}
    assert text(values["CURRENTBUILD"]) == text(values["CURRENTBUILDNUMBER"]) == str(build.number)
    assert values["CURRENTMAJORVERSIONNUMBER"] == RegistryValue.dword(10)
    assert values["CURRENTMINORVERSIONNUMBER"] == RegistryValue.dword(0)
    assert text(values["RELEASEID"])
    assert ("DISPLAYVERSION" in values) == (build.number >= 19042)
    assert "UBR" not in values


def test_build_with_revision() -> None:
    before = registry()
    after = with_build(before, parse_build("10.0.17763.805"))
    values = after.system.values(VERSION)
    assert {name: text(value) for name, value in values.items() if value.kind == ValueType.SZ} == {
        "CurrentVersion": "6.3",
        "CurrentBuild": "17763",
        "CurrentBuildNumber": "17763",
        "ProductName": "Windows Server 2019 Datacenter",
        "EditionID": "ServerDatacenter",
        "InstallationType": "Server Core",
        "ReleaseId": "1809",
    }
    assert values["UBR"] == RegistryValue.dword(805)
    product = r"System\CurrentControlSet\Control\ProductOptions"
    assert text(after.system.value(product, "ProductType")) == "ServerNT"
    assert after.user.values(r"Software\Wine") == {"Keep": RegistryValue.text("this")}
    assert before.system.to_bytes() == SYSTEM
    assert before.user.to_bytes() == USER


def test_changing_the_build_removes_values_of_the_previous_one() -> None:
    first = with_build(registry(), parse_build("10.0.20348.2113"))
    again = with_build(first, parse_build("10.0.17763"))
    assert again.system.values(VERSION) == with_build(
        registry(), parse_build("2019")
    ).system.values(VERSION)


def test_32_bit_view_has_the_same_build() -> None:
    before = registry()
    key = r"Software\Wow6432Node\Microsoft\Windows NT\CurrentVersion"
    assert not with_build(before, parse_build("2022")).system.has_key(key)
    before.system.set(key + r"\Console", {})
    after = with_build(before, parse_build("2022")).system
    assert text(after.value(key, "CurrentBuild")) == "20348"


def test_prefix_round_trips(tmp_path: Path) -> None:
    files = {"system.reg": SYSTEM, "user.reg": USER, "userdef.reg": EMPTY}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert WineRegistry.read(tmp_path).files() == files
    (tmp_path / "user.reg").unlink()
    with pytest.raises(CorruptContent, match=r"user\.reg cannot be read: No such file"):
        WineRegistry.read(tmp_path)


def test_setting_the_build_is_fast_in_a_large_registry() -> None:
    keys = b"".join(
        b'\n[Software\\\\Classes\\\\CLSID\\\\{%08d}] 1\n#time=1\n@="%b"\n' % (n, b"x" * 150)
        for n in range(10_000)
    )
    system = SYSTEM + keys
    assert len(system) > 2_000_000
    start = time.process_time()
    large = WineRegistry(RegistryFile(system), RegistryFile(USER), RegistryFile(EMPTY))
    files = with_build(large, parse_build("2019")).files()
    took = time.process_time() - start
    assert b'"17763"' in files["system.reg"]
    assert took < 0.5  # about 0.03 on an idle machine


# Any UTF-16, including lone surrogates: the registry accepts any name.
NAMES = st.text(st.characters(exclude_categories=())).map(
    lambda name: name.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
)
KEYS = st.lists(
    NAMES.map(lambda name: name.replace("\\", "/")[:50]).filter(bool), min_size=1, max_size=4
).map("\\".join)
VALUES = st.one_of(
    st.builds(RegistryValue, st.integers(0, 0xFFFFFFFF), st.binary(max_size=200)),
    NAMES.map(
        lambda name: RegistryValue(ValueType.SZ, (name + "\0").encode("utf-16-le", "surrogatepass"))
    ),
    st.builds(
        lambda kind, parts: RegistryValue(
            kind, "\0".join(parts).encode("utf-16-le", "surrogatepass")
        ),
        st.sampled_from((ValueType.SZ, ValueType.EXPAND_SZ, ValueType.MULTI_SZ)),
        st.lists(NAMES),
    ),
    st.integers(0, 0xFFFFFFFF).map(RegistryValue.dword),
)


@given(st.dictionaries(KEYS, st.dictionaries(NAMES, VALUES, max_size=5), max_size=5))
def test_any_content_round_trips(content: dict[str, dict[str, RegistryValue]]) -> None:
    file = RegistryFile(EMPTY)
    expected: dict[str, dict[str, RegistryValue]] = {}
    for key, values in content.items():
        file.set(key, values)
        folded = {casefold_key(name): value for name, value in values.items()}
        expected.setdefault(casefold_key(key), {}).update(folded)
    data = file.to_bytes()
    assert data.isascii()
    again = RegistryFile(data)
    assert {casefold_key(key) for key in again.keys()} == set(expected)  # noqa: SIM118
    for key, expected_values in expected.items():
        got = {casefold_key(name): value for name, value in again.values(key).items()}
        assert got == expected_values
    assert again.to_bytes() == data


CONTENTS = st.dictionaries(KEYS, st.dictionaries(NAMES, VALUES, max_size=3), max_size=4)


def file_with(*contents: dict[str, dict[str, RegistryValue]]) -> RegistryFile:
    file = RegistryFile(EMPTY)
    for content in contents:
        for key, values in content.items():
            file.set(key, values)
    return file


def content_of(file: RegistryFile) -> dict[str, dict[str, RegistryValue]]:
    """Return the keys that have values."""
    read = {key: file.values(key) for key in file.keys()}  # noqa: SIM118
    return {
        casefold_key(key): {casefold_key(name): value for name, value in values.items()}
        for key, values in read.items()
        if values
    }


@given(CONTENTS, CONTENTS, CONTENTS)
def test_diff_turns_one_file_into_the_other(
    shared: dict[str, dict[str, RegistryValue]],
    then: dict[str, dict[str, RegistryValue]],
    now: dict[str, dict[str, RegistryValue]],
) -> None:
    before, after = file_with(shared, then), file_with(shared, now)
    turned = before.copy()
    for change in after.diff_from(before):
        if change.name is None:
            turned.remove_key(change.key)
        elif change.value is None:
            turned.remove_values(change.key, change.name)
        else:
            turned.set(change.key, {change.name: change.value})
    assert content_of(turned) == content_of(after)


def test_diff_of_a_changed_build_is_small() -> None:
    registry = WineRegistry(*(RegistryFile(data) for data in (SYSTEM, EMPTY, EMPTY)))
    host = with_build(registry, parse_build("2022"))
    image = with_build(registry, parse_build("10.0.17763.805"))
    assert list(host.system.diff_from(host.system)) == []
    changes = {change.name for change in image.system.diff_from(host.system)}
    assert {"CurrentBuild", "CurrentBuildNumber", "UBR", "ProductName"} <= changes
    assert len(changes) < 10


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    try:
        file = RegistryFile(EMPTY + b"\n[A] 1\n" + data)
    except CorruptContent:
        return
    assert file.to_bytes().count(b"\n[A] 1\n") >= 1
    for key in list(file.keys()):
        with contextlib.suppress(CorruptContent):
            file.values(key)

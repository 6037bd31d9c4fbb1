"""Tests of Windows builds and release names."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.windows.builds import (
    RELEASES,
    Build,
    Release,
    ServicingChannel,
    parse_build,
    parse_version,
    supported_ltsc,
)

builds = st.builds(
    Build,
    major=st.integers(0, 20),
    minor=st.integers(0, 9),
    number=st.integers(0, 99999),
    revision=st.none() | st.integers(0, 9999),
)

TABLE = {
    14393: ("Windows Server 2016", ServicingChannel.LTSC),
    15063: ("Windows 10 Creators Update", ServicingChannel.CLIENT),
    16299: ("Windows Server 1709", ServicingChannel.SEMI_ANNUAL),
    17134: ("Windows Server 1803", ServicingChannel.SEMI_ANNUAL),
    17763: ("Windows Server 2019", ServicingChannel.LTSC),
    18362: ("Windows Server 1903", ServicingChannel.SEMI_ANNUAL),
    18363: ("Windows Server 1909", ServicingChannel.SEMI_ANNUAL),
    19041: ("Windows Server 2004", ServicingChannel.SEMI_ANNUAL),
    19042: ("Windows Server 20H2", ServicingChannel.SEMI_ANNUAL),
    19043: ("Windows Server 21H1", ServicingChannel.SEMI_ANNUAL),
    19044: ("Windows 10 November 2021 Update", ServicingChannel.CLIENT),
    19045: ("Windows 10 2022 Update", ServicingChannel.CLIENT),
    20348: ("Windows Server 2022", ServicingChannel.LTSC),
    22000: ("Windows 11", ServicingChannel.CLIENT),
    22621: ("Windows 11 2022 Update", ServicingChannel.CLIENT),
    25398: ("Windows Server 23H2", ServicingChannel.ANNUAL),
    26100: ("Windows Server 2025", ServicingChannel.LTSC),
}


def test_the_table_has_every_release_once() -> None:
    assert {r.build.number: (r.name, r.channel) for r in RELEASES} == TABLE
    assert len(RELEASES) == len(TABLE)


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.name)
def test_release_is_found_by_all_its_names(release: Release) -> None:
    for name in (release.name, *release.other_names, *release.aliases, str(release.build.number)):
        assert parse_build(name) == release.build, name
        assert parse_build(name.upper()) == release.build, name


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("10.0.17763", "10.0.17763"),
        ("10.0.17763.805", "10.0.17763.805"),
        (" 10.0.17763 ", "10.0.17763"),
        ("2019", "10.0.17763"),
        ("1809", "10.0.17763"),
        ("ltsc2022", "10.0.20348"),
        ("Windows Server 2025", "10.0.26100"),
        ("Windows Server version 1903", "10.0.18362"),
        ("Windows Server 2019 Datacenter", "10.0.17763"),
        ("WindowsServer1809", "10.0.17763"),
        ("Windows1903", "10.0.18362"),
        ("windows-2022", "10.0.20348"),
        ("V21H2Server", "10.0.20348"),
        ("10.0.99999.1", "10.0.99999.1"),
    ],
)
def test_build_accepts_informal_names(text: str, build: str) -> None:
    assert str(parse_build(text)) == build


@pytest.mark.parametrize(
    "text", ["", "2018", "windows", "10", "10.0", "10.0.x", "10.0.17763.", "1.2.3.4.5", "latest"]
)
def test_unknown_build_is_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_build(text)
    assert f'"{text}" is not a Windows build.' in str(caught.value)
    assert "10.0.17763" in caught.value.hint
    assert "2022" in caught.value.hint


@given(builds)
def test_a_build_reads_back_as_it_was_written(build: Build) -> None:
    assert parse_version(str(build)) == build
    assert parse_build(str(build)) == build


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with suppress(InvalidInput):
        parse_build(text)


@given(builds, builds)
def test_builds_compare_as_numbers(one: Build, other: Build) -> None:
    def key(build: Build) -> list[int]:
        revision = -1 if build.revision is None else build.revision
        return [build.major, build.minor, build.number, revision]

    assert (one < other) == (key(one) < key(other))
    assert (one == other) == (key(one) == key(other))


def test_a_revision_is_compared_as_a_number_and_not_as_text() -> None:
    assert parse_build("10.0.17763.1006") > parse_build("10.0.17763.887")


def test_the_supported_long_term_releases_are_those_that_run_pods() -> None:
    assert [r.short_name for r in supported_ltsc()] == ["2019", "2022", "2025"]


def test_build_has_a_product_name() -> None:
    assert parse_build("1809").describe() == "10.0.17763 (Windows Server 2019)"
    assert parse_build("10.0.20349").describe() == "10.0.20349"

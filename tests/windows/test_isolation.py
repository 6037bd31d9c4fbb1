"""Tests of the isolation rule with containerd's vectors, and its properties."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.windows.builds import Build
from winpod.windows.isolation import (
    describe_accepted_builds,
    guest_fits_host,
    image_fits_host,
    oldest_accepted_build,
)

VECTORS = json.loads(
    (Path(__file__).parent.parent / "data/os-version-vectors.json").read_text("utf-8")
)["vectors"]

windows = st.integers(10000, 40000).map(lambda number: Build(10, 0, number))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['image']}-on-{v['host']}")
def test_process_isolation_follows_containerd(vector: dict[str, int]) -> None:
    host, image = Build(10, 0, vector["host"]), Build(10, 0, vector["image"])
    assert image_fits_host(image, host) == vector["platforms_rc5"]


def test_all_vectors_are_covered() -> None:
    assert len(VECTORS) == 81


@given(windows)
def test_a_host_runs_its_own_build_whatever_the_revision(host: Build) -> None:
    assert image_fits_host(host, host)
    assert image_fits_host(Build(10, 0, host.number, 805), host)
    assert image_fits_host(host, Build(10, 0, host.number, 1))


@given(windows, windows)
def test_a_newer_image_never_runs_on_an_older_host(image: Build, host: Build) -> None:
    if image > host:
        assert not image_fits_host(image, host)
        assert not guest_fits_host(image, host)


@given(windows, windows)
def test_before_the_stable_abi_only_the_same_build_fits(image: Build, host: Build) -> None:
    if host.number < 20348:
        assert image_fits_host(image, host) == (image == host)


@given(windows, windows)
def test_any_older_or_equal_guest_boots(guest: Build, host: Build) -> None:
    assert guest_fits_host(guest, host) == (guest <= host)


@given(windows)
def test_the_oldest_fitting_build_fits_and_the_one_below_does_not(host: Build) -> None:
    oldest = oldest_accepted_build(host)
    assert image_fits_host(oldest, host)
    assert not image_fits_host(Build(10, 0, oldest.number - 1), host)


def test_another_major_version_never_fits() -> None:
    assert not image_fits_host(Build(6, 3, 20348), Build(10, 0, 20348))


def test_the_rule_reads_as_a_range() -> None:
    assert describe_accepted_builds(Build(10, 0, 17763)) == "10.0.17763"
    assert describe_accepted_builds(Build(10, 0, 20348, 5)) == "10.0.20348"
    assert describe_accepted_builds(Build(10, 0, 26100)) == "10.0.20348 to 10.0.26100"

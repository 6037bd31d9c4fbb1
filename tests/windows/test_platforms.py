"""Tests of selecting a manifest by os, architecture, variant, features, build and revision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.windows.builds import Build
from winpod.windows.isolation import image_fits_host
from winpod.windows.platforms import Image, Manifest, Platform, PlatformRequirement, choose_manifest

HOST_2019 = PlatformRequirement("windows", "amd64", Build(10, 0, 17763))
HOST_2025 = PlatformRequirement("windows", "amd64", Build(10, 0, 26100))


def manifest(version: str, os: str = "windows", arch: str = "amd64", **more: str) -> Manifest:
    platform = Platform.normalised(os, arch, os_version=version, **more)
    return Manifest(f"sha256:{os}-{arch}-{version}", platform, 1)


GOLANG = (
    manifest("", "linux"),
    manifest("", "linux", "arm", variant="v7"),
    manifest("", "linux", "arm64", variant="v8"),
    manifest("10.0.14393.3274"),
    manifest("10.0.17134.1069"),
    manifest("10.0.17763.805"),
)


def chosen(manifests: tuple[Manifest, ...], wanted: PlatformRequirement) -> str | None:
    found = choose_manifest(manifests, wanted)
    return found.platform.os_version if found else None


def test_golang_index_of_the_documents_matches_each_host() -> None:
    assert chosen(GOLANG, HOST_2019) == "10.0.17763.805"
    assert (
        chosen(GOLANG, PlatformRequirement("windows", "amd64", Build(10, 0, 17134)))
        == "10.0.17134.1069"
    )
    assert chosen(GOLANG, PlatformRequirement("windows", "amd64", Build(10, 0, 18362))) is None
    arm = choose_manifest(GOLANG, PlatformRequirement("linux", "arm64"))
    assert arm is not None
    assert str(arm.platform) == "linux/arm64"


def test_the_highest_revision_wins_as_a_number() -> None:
    manifests = tuple(manifest(f"10.0.17763.{r}") for r in (887, 1006, 99))
    assert chosen(manifests, HOST_2019) == "10.0.17763.1006"


def test_the_newest_build_that_fits_wins() -> None:
    manifests = tuple(manifest(f"10.0.{b}.1") for b in (17763, 20348, 25398, 26200))
    assert chosen(manifests, HOST_2025) == "10.0.25398.1"


def test_no_version_fits_every_host_and_loses_to_any_version() -> None:
    assert chosen((manifest(""),), HOST_2019) == ""
    assert chosen((manifest(""), manifest("10.0.17763.1")), HOST_2019) == "10.0.17763.1"


@pytest.mark.parametrize("version", ["10", "10.0", "ltsc2019", "10.0.x"])
def test_invalid_version_fits_no_host(version: str) -> None:
    assert chosen((manifest(version),), HOST_2019) is None


def test_win32k_is_ignored_and_other_features_are_required() -> None:
    server = Platform.normalised("windows", "amd64", "", "10.0.17763.1", ["win32k"])
    other = Platform.normalised("windows", "amd64", "", "10.0.17763.2", ["gpu"])
    manifests = (Manifest("a", server, 1), Manifest("b", other, 1))
    assert chosen(manifests, HOST_2019) == "10.0.17763.1"
    with_gpu = PlatformRequirement("windows", "amd64", Build(10, 0, 17763), os_features=("gpu",))
    assert chosen(manifests, with_gpu) == "10.0.17763.2"


def test_constraint_only_narrows_the_choice() -> None:
    manifests = tuple(manifest(v) for v in ("10.0.20348.1", "10.0.26100.1"))
    narrowed = PlatformRequirement("windows", "amd64", Build(10, 0, 26100), constraint="10.0.20348")
    assert chosen(manifests, narrowed) == "10.0.20348.1"
    too_new = PlatformRequirement("windows", "amd64", Build(10, 0, 20348), constraint="10.0.26100")
    assert chosen(manifests, too_new) is None


def test_constraint_matches_whole_version_components() -> None:
    narrowed = PlatformRequirement(
        "windows", "amd64", Build(10, 0, 17763), constraint="10.0.17763.8"
    )
    assert chosen((manifest("10.0.17763.805"),), narrowed) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (("Windows", "x86_64", ""), ("windows", "amd64", "")),
        (("linux", "aarch64", "8"), ("linux", "arm64", "")),
        (("linux", "arm64", "v8"), ("linux", "arm64", "")),
        (("linux", "arm", ""), ("linux", "arm", "v7")),
        (("linux", "arm", "6"), ("linux", "arm", "v6")),
        (("linux", "amd64", "v1"), ("linux", "amd64", "")),
        (("linux", "i386", ""), ("linux", "386", "")),
    ],
)
def test_names_are_normalised_as_containerd_does(
    written: tuple[str, str, str], meant: tuple[str, str, str]
) -> None:
    platform = Platform.normalised(*written)
    assert (platform.os, platform.architecture, platform.variant) == meant


versions = st.builds(
    lambda number, revision: f"10.0.{number}.{revision}",
    st.sampled_from([14393, 17763, 18362, 20348, 22621, 25398, 26100, 26200]),
    st.integers(1, 4000),
)


@given(st.lists(versions), st.sampled_from([17763, 18362, 20348, 25398, 26100, 26200]))
def test_the_choice_fits_and_nothing_that_fits_is_newer(found: list[str], number: int) -> None:
    host = Build(10, 0, number)
    manifests = tuple(manifest(v) for v in found)
    fitting = [m.platform.build for m in manifests if m.platform.build]
    fitting = [build for build in fitting if image_fits_host(build, host)]
    choice = choose_manifest(manifests, PlatformRequirement("windows", "amd64", host))
    assert (choice.platform.build if choice else None) == max(fitting, default=None)


def test_an_image_lists_its_builds_oldest_first_by_number() -> None:
    manifests = tuple(manifest(v) for v in ("10.0.17763.1006", "10.0.17763.887", "10.0.14393.1"))
    image = Image("x", "", manifests)
    assert image.builds() == ("10.0.14393.1", "10.0.17763.887", "10.0.17763.1006")
    assert image.builds("arm64") == ()

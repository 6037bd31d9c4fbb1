"""Choice of the Debian mirror, and errors of mmdebstrap."""

from pathlib import Path

import pytest

from winpod.errors import InvalidInput
from winpod.images.base import rootfs_builder
from winpod.images.base.rootfs_builder import (
    KEYRING,
    Mirrors,
    choose_mirrors,
    explain,
    unpack_packages,
)
from winpod.images.errors import BaseBuildFailed, DiskFull, MirrorUnavailable, ToolMissing

DEBIAN = Mirrors("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")
NEW_FORMAT = """\
# a comment
Types: deb
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main

Types: deb
# another
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


def apt(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        file_name = name.replace("_", ".")
        place = tmp_path if file_name == "sources.list" else tmp_path / "sources.list.d"
        (place / file_name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, DEBIAN),
        (
            {"debian_sources": NEW_FORMAT},
            Mirrors("http://mirror.example/debian", "http://mirror.example/debian-security"),
        ),
        (
            {"sources_list": "deb [arch=amd64] https://a.example/pub/debian/ bookworm main\n"},
            Mirrors("https://a.example/pub/debian"),
        ),
        ({"sources_list": "deb http://deb.debian.org/debian bookworm main\n"}, DEBIAN),
        ({"sources_list": "# deb http://a.example/debian bookworm main\n"}, DEBIAN),
        ({"sources_list": "deb-src http://a.example/debian bookworm main\n"}, DEBIAN),
        ({"sources_list": "deb mirror+file:/etc/mirrors/debian bookworm main\n"}, DEBIAN),
        ({"ubuntu_sources": NEW_FORMAT.replace("/debian", "/ubuntu")}, DEBIAN),
        ({"off_sources": NEW_FORMAT.replace("Types:", "Enabled: no\nTypes:")}, DEBIAN),
        ({"source_sources": NEW_FORMAT.replace("deb\n", "deb-src\n")}, DEBIAN),
        ({"debian_bak": "deb http://a.example/debian bookworm main\n"}, DEBIAN),
        (
            {
                "several_sources": NEW_FORMAT.replace(
                    "http://mirror", "\n http://b.example\n http://mirror"
                )
            },
            Mirrors("http://mirror.example/debian", "http://mirror.example/debian-security"),
        ),
    ],
)
def test_mirror_of_apt_is_used(files: dict[str, str], expected: Mirrors, tmp_path: Path) -> None:
    assert choose_mirrors(apt=apt(tmp_path, **files)) == expected


def test_chosen_mirror_takes_precedence_over_apt(tmp_path: Path) -> None:
    sources = apt(tmp_path, debian_sources=NEW_FORMAT)
    assert choose_mirrors("https://b.example/debian/", sources) == Mirrors(
        "https://b.example/debian"
    )


@pytest.mark.parametrize("text", ["deb.debian.org", "ftp://a/debian", "http://a b/debian"])
def test_mirror_must_be_a_url(text: str) -> None:
    with pytest.raises(InvalidInput, match="not the URL of a Debian mirror"):
        choose_mirrors(text)


def test_every_source_is_restricted_to_debian_keys() -> None:
    sources = DEBIAN.sources(with_32bit=True)
    assert len(sources) == 3
    assert all(f"signed-by={KEYRING}" in line for line in sources)
    assert ["i386" in line for line in sources] == [True, False, False]
    assert not any("i386" in line for line in DEBIAN.sources())


@pytest.mark.parametrize(
    ("output", "error", "sentence"),
    [
        ("E: ... Could not connect to 127.0.0.1:9 - connect (111)", MirrorUnavailable, "reached"),
        ("E: Temporary failure resolving 'a.example'", MirrorUnavailable, "http_proxy"),
        ("W: GPG error: NO_PUBKEY 6ED0E7B82643E131", MirrorUnavailable, "not signed"),
        ("E: The repository 'http://a trixie Release' is not signed.", MirrorUnavailable, "signed"),
        ("E: Failed to fetch http://a/x 404  Not Found", MirrorUnavailable, "not have all"),
        ("E: Unable to locate package wine64", MirrorUnavailable, "not have all"),
        (
            "E: File has unexpected size (1 != 2). Mirror sync in progress?",
            MirrorUnavailable,
            "outdated",
        ),
        ("tar: write error: No space left on device", DiskFull, "full"),
        ("I: fine\nE: something else\nI: more", BaseBuildFailed, "E: something else"),
        ("", BaseBuildFailed, "mmdebstrap"),
    ],
)
def test_errors_of_mmdebstrap_are_explained(
    output: str, error: type[Exception], sentence: str
) -> None:
    found = explain(output, Mirrors("http://a.example/debian"))
    assert isinstance(found, error)
    assert sentence in str(found)


def test_missing_keyring_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rootfs_builder, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(ToolMissing, match="apt-get install debian-archive-keyring"):
        unpack_packages(tmp_path / "tree", DEBIAN, with_32bit=False)

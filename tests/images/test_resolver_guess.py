import pytest

from winpod.images.references import parse_reference
from winpod.images.resolver import guess_build_from_tag


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mcr.microsoft.com/windows/servercore:ltsc2022", "10.0.20348"),
        ("mcr.microsoft.com/windows/nanoserver:1809", "10.0.17763"),
        ("mcr.microsoft.com/windows:20H2", "10.0.19042"),
        ("golang:1.13-nanoserver-1809", "10.0.17763"),
        ("golang:windowsservercore-ltsc2019", "10.0.17763"),
        ("mcr.microsoft.com/windows/nanoserver:10.0.17763.805", "10.0.17763.805"),
        ("mcr.microsoft.com/windows/nanoserver:10.0.20348.2113-amd64", "10.0.20348.2113"),
        ("app:1.2.3-windows-ltsc2022", "10.0.20348"),
        ("app:1.2.3-windows-2019", "10.0.17763"),
        ("pause:3.9-windows-1809-amd64", "10.0.17763"),
        ("app:ltsc2025", "10.0.26100"),
        ("app:v1_ltsc2016", "10.0.14393"),
    ],
)
def test_build_is_guessed_from_the_tag(text: str, version: str) -> None:
    image = guess_build_from_tag(parse_reference(text))
    assert image is not None
    assert image.is_guess
    assert image.builds() == (version,)
    assert [m.platform.architecture for m in image.manifests] == ["amd64"]


@pytest.mark.parametrize(
    "text",
    [
        "nginx",
        "app:1809",
        "app:2022",
        "mssql/server:2019-latest",
        "ubuntu:20.04",
        "windows-exporter:0.2019.1",
        "windows-exporter:1.1809.2",
        "windows-exporter:1.2004",
        "app:1.17763.4",
        "app:110.0.17763.1",
        "app:10.0.17763.1.5",
        "dotnet/sdk:10.0.10000",
        "app:notltsc2022",
        "app:ltsc20222",
        "app:windows",
        "app:windows-ltsc2019-ltsc2022",
    ],
)
def test_version_that_is_not_a_windows_build_is_not_guessed(text: str) -> None:
    assert guess_build_from_tag(parse_reference(text)) is None


def test_architecture_is_guessed_from_the_tag() -> None:
    image = guess_build_from_tag(parse_reference("app:ltsc2025-arm64"))
    assert image is not None
    assert image.manifests[0].platform.architecture == "arm64"

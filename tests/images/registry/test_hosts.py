from pathlib import Path

import pytest

from tests.support.registries import make_certificate
from winpod.errors import InvalidInput
from winpod.images.registry.hosts import (
    Capability,
    RegistryHost,
    hosts_directories,
    is_loopback,
    registry_hosts,
)


def write(root: Path, name: str, text: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "hosts.toml").write_text(text)


@pytest.mark.parametrize(
    ("registry", "origin"),
    [
        ("docker.io", "https://registry-1.docker.io"),
        ("mcr.microsoft.com", "https://mcr.microsoft.com"),
        ("example.com:5000", "https://example.com:5000"),
        ("localhost:5000", "http://localhost:5000"),
        ("localhost", "http://localhost"),
        ("127.9.9.9", "http://127.9.9.9"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
        ("localhost.example.com", "https://localhost.example.com"),
    ],
)
def test_registry_without_configuration_is_used_directly(registry: str, origin: str) -> None:
    (host,) = registry_hosts(registry, [])
    assert host.origin == origin
    assert host.path == "/v2"
    assert host.serves(registry)


def test_hosts_are_in_file_order_with_the_server_last(tmp_path: Path) -> None:
    text = """
    server = "https://registry-1.docker.io"
    [host."https://z.example"]
      capabilities = ["pull", "Resolve"]
    [host."http://a.example:5000/prefix"]
      override_path = true
      skip_verify = true
      ca = ["one.pem", "/two.pem"]
      client = [["c.pem", "c.key"], "both.pem"]
      [host."http://a.example:5000/prefix".header]
        x-one = "1"
        x-two = ["2", "3"]
    [host."m.example/v2"]
    """
    write(tmp_path, "docker.io", text)
    first, second, third, server = registry_hosts("docker.io", [tmp_path])
    assert (first.origin, first.path) == ("https://z.example", "/v2")
    assert first.capabilities == {Capability.PULL, Capability.RESOLVE}
    directory = tmp_path / "docker.io"
    assert second == RegistryHost(
        scheme="http",
        name="a.example:5000",
        path="/prefix",
        authorities=(directory / "one.pem", Path("/two.pem")),
        client_pairs=((directory / "c.pem", directory / "c.key"), (directory / "both.pem", None)),
        skip_verify=True,
        headers=(("x-one", "1"), ("x-two", "2"), ("x-two", "3")),
    )
    assert (third.origin, third.path) == ("https://m.example", "/v2")
    assert not third.serves("docker.io")
    assert server.serves("docker.io")


def test_default_directory_applies_to_other_registries(tmp_path: Path) -> None:
    write(tmp_path, "_default", '[host."https://mirror.example"]')
    write(tmp_path, "own.example_5000_", 'server = "https://other.example"')
    assert [h.name for h in registry_hosts("quay.io", [tmp_path])] == ["mirror.example", "quay.io"]
    assert [h.name for h in registry_hosts("own.example:5000", [tmp_path])] == ["other.example"]


def test_first_directory_with_the_registry_wins(tmp_path: Path) -> None:
    write(tmp_path / "one", "a.example", 'server = "https://first.example"')
    write(tmp_path / "two", "a.example", 'server = "https://second.example"')
    roots = [tmp_path / "nowhere", tmp_path / "one", tmp_path / "two"]
    assert [h.name for h in registry_hosts("a.example", roots)] == ["first.example"]


def test_certificates_in_docker_layout_are_used(tmp_path: Path) -> None:
    directory = tmp_path / "localhost:5000"
    directory.mkdir()
    for name in ("ca.crt", "client.cert", "client.key"):
        (directory / name).touch()
    (host,) = registry_hosts("localhost:5000", [tmp_path])
    assert host.origin == "https://localhost:5000"
    assert host.authorities == (directory / "ca.crt",)
    assert host.client_pairs == ((directory / "client.cert", directory / "client.key"),)


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "host = 1",
        "server = 1",
        'server = "ftp://x"',
        '[host]\n"https://x" = 1',
        '[host."https://x"]\ncapabilities = ["fly"]',
        '[host."https://x"]\nca = 1',
        '[host."https://x"]\nclient = [["only one"]]',
        '[host."https://x"]\nclient = 1',
        '[host."https://x"]\nheader = 1',
        '[host."https://x".header]\na = 1',
    ],
)
def test_invalid_hosts_file_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, "a.example", text)
    with pytest.raises(InvalidInput, match=r"a\.example/hosts\.toml"):
        registry_hosts("a.example", [tmp_path])


def test_invalid_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for host in (
        RegistryHost("https", "x", authorities=(tmp_path / "bad.pem",)),
        RegistryHost("https", "x", authorities=(tmp_path / "nowhere.pem",)),
        RegistryHost("https", "x", client_pairs=((tmp_path / "bad.pem", None),)),
    ):
        with pytest.raises(InvalidInput, match=r"\.pem cannot be used"):
            host.ssl_context()


def test_client_certificates_are_loaded(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    host = RegistryHost(
        "https", "x", authorities=(certificate,), client_pairs=((certificate, key),)
    )
    assert host.ssl_context().get_ca_certs()


def test_tls_context_is_cached_until_files_change(tmp_path: Path) -> None:
    assert RegistryHost("https", "x").ssl_context() is RegistryHost("https", "y").ssl_context()
    assert (
        RegistryHost("https", "x").ssl_context()
        is not RegistryHost("https", "x", skip_verify=True).ssl_context()
    )
    certificate, _ = make_certificate(tmp_path)
    host = RegistryHost("https", "x", authorities=(certificate,))
    first = host.ssl_context()
    assert host.ssl_context() is first
    certificate.write_text(certificate.read_text() + "\n")
    assert host.ssl_context() is not first


def test_hosts_directory_of_the_environment_replaces_the_defaults(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hosts_directories() == (home / "certs.d",)
    monkeypatch.delenv("WINPOD_HOSTS_DIR")
    assert hosts_directories()[0] == home / ".config/winpod/certs.d"


def test_is_loopback() -> None:
    assert is_loopback("127.0.0.1:5000")
    assert is_loopback("[::1]")
    assert not is_loopback("example.com:80")
    assert not is_loopback("")

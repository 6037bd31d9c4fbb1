from pathlib import Path

import pytest

from tests.images.registries import make_certificate
from winpod.images.hosts import Capability, Host, default_roots, hosts_of, is_loopback
from winpod.windows.errors import InvalidInput


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
def test_a_registry_without_configuration_is_asked_directly(registry: str, origin: str) -> None:
    (host,) = hosts_of(registry, [])
    assert host.origin == origin
    assert host.path == "/v2"
    assert host.serves(registry)


def test_hosts_come_in_the_order_of_the_file_and_the_server_last(tmp_path: Path) -> None:
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
    first, second, third, server = hosts_of("docker.io", [tmp_path])
    assert (first.origin, first.path) == ("https://z.example", "/v2")
    assert first.capabilities == {Capability.PULL, Capability.RESOLVE}
    directory = tmp_path / "docker.io"
    assert second == Host(
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


def test_the_default_directory_is_for_everyone_else(tmp_path: Path) -> None:
    write(tmp_path, "_default", '[host."https://mirror.example"]')
    write(tmp_path, "own.example_5000_", 'server = "https://other.example"')
    assert [h.name for h in hosts_of("quay.io", [tmp_path])] == ["mirror.example", "quay.io"]
    assert [h.name for h in hosts_of("own.example:5000", [tmp_path])] == ["other.example"]


def test_the_first_root_that_knows_a_registry_wins(tmp_path: Path) -> None:
    write(tmp_path / "one", "a.example", 'server = "https://first.example"')
    write(tmp_path / "two", "a.example", 'server = "https://second.example"')
    roots = [tmp_path / "nowhere", tmp_path / "one", tmp_path / "two"]
    assert [h.name for h in hosts_of("a.example", roots)] == ["first.example"]


def test_certificates_as_docker_lays_them_out(tmp_path: Path) -> None:
    directory = tmp_path / "localhost:5000"
    directory.mkdir()
    for name in ("ca.crt", "client.cert", "client.key"):
        (directory / name).touch()
    (host,) = hosts_of("localhost:5000", [tmp_path])
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
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, "a.example", text)
    with pytest.raises(InvalidInput, match=r"a\.example/hosts\.toml"):
        hosts_of("a.example", [tmp_path])


def test_a_bad_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for host in (
        Host("https", "x", authorities=(tmp_path / "bad.pem",)),
        Host("https", "x", authorities=(tmp_path / "nowhere.pem",)),
        Host("https", "x", client_pairs=((tmp_path / "bad.pem", None),)),
    ):
        with pytest.raises(InvalidInput, match=r"\.pem cannot be used"):
            host.tls()


def test_client_certificates_are_loaded(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    host = Host("https", "x", authorities=(certificate,), client_pairs=((certificate, key),))
    assert host.tls().get_ca_certs()


def test_authorities_are_read_once_until_their_files_change(tmp_path: Path) -> None:
    assert Host("https", "x").tls() is Host("https", "y").tls()
    assert Host("https", "x").tls() is not Host("https", "x", skip_verify=True).tls()
    certificate, _ = make_certificate(tmp_path)
    host = Host("https", "x", authorities=(certificate,))
    first = host.tls()
    assert host.tls() is first
    certificate.write_text(certificate.read_text() + "\n")
    assert host.tls() is not first


def test_the_directory_of_the_environment_is_the_only_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_roots() == (home / "certs.d",)
    monkeypatch.delenv("WINPOD_HOSTS_DIR")
    assert default_roots()[0] == home / ".config/winpod/certs.d"


def test_loopback_is_this_machine_only() -> None:
    assert is_loopback("127.0.0.1:5000")
    assert is_loopback("[::1]")
    assert not is_loopback("example.com:80")
    assert not is_loopback("")

"""Client configuration from a service account and from kubeconfigs."""

import asyncio
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from winpod.errors import InvalidInput, Unavailable
from winpod.k8s.certificates import PrivateKey, node_subject
from winpod.k8s.kubeconfig import RestConfig, in_cluster_config, read_kubeconfig


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Service account files, as a kubelet mounts them."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "ca.crt").write_bytes(
        PrivateKey.new().self_signed(node_subject("ca"), datetime.now(UTC))
    )
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_in_cluster_config_uses_service_variables(
    files: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    access = in_cluster_config(files)
    assert access.url == url
    assert access.ca_data == (files / "ca.crt").read_bytes()


async def test_service_account_token_is_reread(files: Path) -> None:
    access = in_cluster_config(files)
    assert await access.headers() == {"Authorization": "Bearer first"}
    (files / "token").write_text("second")
    access.reload()
    assert await access.headers() == {"Authorization": "Bearer second"}
    (files / "token").unlink()
    access.reload()
    with pytest.raises(Unavailable, match="Failed to read the API server token"):
        await access.headers()


def test_in_cluster_config_outside_pod_requires_kubeconfig(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="set --kubeconfig"):
        in_cluster_config(files / "nowhere")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(InvalidInput, match="KUBERNETES_SERVICE_HOST is not set"):
        in_cluster_config(files)


def test_missing_referenced_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config"
    with pytest.raises(InvalidInput, match="config does not exist"):
        read_kubeconfig(file)
    cluster = {"server": "https://server", "certificate-authority": str(tmp_path / "gone.crt")}
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
    }
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"gone\.crt, referenced by .*config, does not exist"):
        read_kubeconfig(file)


def _write(file: Path, **sections: object) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({name.replace("_", "-"): value for name, value in sections.items()}))
    return file


def _context(name: str, cluster: str, user: str) -> dict[str, object]:
    return {"name": name, "context": {"cluster": cluster, "user": user}}


def _cluster(name: str, server: str, **more: str) -> dict[str, object]:
    return {"name": name, "cluster": {"server": server, **more}}


async def test_kubeconfigs_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    first = _write(
        tmp_path / "first" / "config",
        contexts=[_context("a", "one", "admin"), _context("b", "two", "admin")],
        clusters=[_cluster("one", "https://one")],
    )
    second = _write(
        tmp_path / "second" / "config",
        current_context="b",
        contexts=[_context("b", "one", "admin")],
        clusters=[_cluster("one", "https://other"), _cluster("two", "https://two/")],
        users=[{"name": "admin", "user": {"tokenFile": "token"}}],
    )
    (tmp_path / "second" / "token").write_text("secret")
    files = (tmp_path / "gone", first, second)
    current = read_kubeconfig(*files)
    assert current.url == "https://two"
    assert await current.headers() == {"Authorization": "Bearer secret"}
    other = read_kubeconfig(*files, context="a")
    assert other.url == "https://one"
    assert other.reload() is False
    assert other.url == "https://one"
    with pytest.raises(InvalidInput, match='it has no context "c"'):
        read_kubeconfig(*files, context="c")
    with pytest.raises(InvalidInput, match="current-context is required"):
        read_kubeconfig(first)
    with pytest.raises(InvalidInput, match="gone does not exist"):
        read_kubeconfig(tmp_path / "gone")


def test_server_name_and_proxy_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config"
    options = {"tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}
    sections = {"current_context": "a", "contexts": [_context("a", "one", "")]}
    _write(file, **sections, clusters=[_cluster("one", "https://10.0.0.1", **options)])
    access = read_kubeconfig(file)
    assert (access.tls_server_name, access.proxy) == ("kubernetes", "http://proxy:3128")
    options["proxy-url"] = "socks5://proxy:1080"
    _write(file, **sections, clusters=[_cluster("one", "https://10.0.0.1", **options)])
    with pytest.raises(InvalidInput, match="not an http or https URL"):
        read_kubeconfig(file)


async def test_concurrent_requests_wait_for_exec_plugin(tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text('#!/bin/sh\nsleep 0.2\necho \'{"status": {"token": "secret"}}\'\n')
    program.chmod(0o755)
    access = RestConfig(
        "https://server", ssl.create_default_context(), plugin={"command": str(program)}
    )
    answers = await asyncio.gather(*(access.headers() for _ in range(3)))
    assert answers == [{"Authorization": "Bearer secret"}] * 3
    failing = RestConfig(
        "https://server", ssl.create_default_context(), plugin={"command": "/bin/false"}
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match="returned no token"):
            await failing.headers()

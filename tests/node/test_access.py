"""Who a pod is to its API server: the files and variables that every pod has."""

import asyncio
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from winpod.node.access import Access, read_kubeconfig, service_account_access
from winpod.node.certificates import Key, of_node
from winpod.windows.errors import InvalidInput, Unavailable


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a kubelet mounts them."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "ca.crt").write_bytes(Key.new().self_signed(of_node("ca"), datetime.now(UTC)))
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_a_pod_reaches_the_server_that_its_variables_name(
    files: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    access = service_account_access(files)
    assert access.url == url
    assert access.authority == (files / "ca.crt").read_bytes()


async def test_a_pods_token_is_read_again_because_it_expires(files: Path) -> None:
    access = service_account_access(files)
    assert await access.headers() == {"Authorization": "Bearer first"}
    (files / "token").write_text("second")
    access.read_again()
    assert await access.headers() == {"Authorization": "Bearer second"}
    (files / "token").unlink()
    access.read_again()
    with pytest.raises(Unavailable, match="the token for the API server cannot be read"):
        await access.headers()


def test_outside_of_a_pod_a_kubeconfig_is_asked_for(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="name a kubeconfig with --kubeconfig"):
        service_account_access(files / "nowhere")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(InvalidInput, match="KUBERNETES_SERVICE_HOST is not set"):
        service_account_access(files)


def test_which_file_is_missing_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config"
    with pytest.raises(InvalidInput, match="config does not exist"):
        read_kubeconfig(file)
    cluster = {"server": "https://server", "certificate-authority": str(tmp_path / "gone.crt")}
    known = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
    }
    file.write_text(json.dumps(known))
    with pytest.raises(InvalidInput, match=r"gone\.crt, which .*config names, does not exist"):
        read_kubeconfig(file)


async def test_nobody_goes_without_a_token_while_a_program_is_asked_for_it(tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text('#!/bin/sh\nsleep 0.2\necho \'{"status": {"token": "told"}}\'\n')
    program.chmod(0o755)
    access = Access(
        "https://server", ssl.create_default_context(), plugin={"command": str(program)}
    )
    answers = await asyncio.gather(*(access.headers() for _ in range(3)))
    assert answers == [{"Authorization": "Bearer told"}] * 3
    failing = Access(
        "https://server", ssl.create_default_context(), plugin={"command": "/bin/false"}
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match="told no token"):
            await failing.headers()

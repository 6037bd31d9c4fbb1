"""Collected diagnostics, and redaction of secrets."""

from __future__ import annotations

import asyncio
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.scripted_windows import ScriptedService, ScriptedWindows
from tests.support.ssh_server import SHORT, ssh_server
from winpod.instances.errors import InstanceUnreachable
from winpod.instances.ssh.log_collector import collect_logs, redact_secrets


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


async def test_archive_has_logs_state_events_and_no_secrets(tmp_path: Path) -> None:
    machine = ScriptedWindows(tmp_path, features={"Containers": "Enabled"})
    machine.services["docker"] = ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")
    files = {
        r"C:\k\containerd\containerd.toml": 'root = "C:"\npassword = "hunter2"\n',
        r"C:\k\kubelet\bootstrap.kubeconfig": "token: hunter3",
        r"C:\var\log\containerd\containerd.log": "started\n",
        r"C:\var\log\kubelet\kubelet.log": "Bearer hunter4\nabcdef.0123456789abcdef\n",
    }
    async with ssh_server(tmp_path, machine.reply) as server, server.host() as host:
        for path, text in files.items():
            server.local(path).parent.mkdir(parents=True, exist_ok=True)
            server.local(path).write_text(text)
        made = await collect_logs(host, tmp_path / "found.tar.gz", print)
    with tarfile.open(made) as archive:
        found = {
            name.partition("/")[2]: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in archive.getnames()
        }
    assert json.loads(found["state.json"])["services"]["docker"]["state"] == "running"
    assert found["C/var/log/containerd/containerd.log"] == "started\n"
    assert "stopped state" in found["events.txt"]
    assert "kube-proxy.yaml: does not exist" in found["missing.txt"]
    whole = "".join(found.values())
    assert "hunter" not in whole
    assert "0123456789abcdef" not in whole
    assert names_in(tmp_path) == ["C:", "found.tar.gz"]


async def test_failed_items_are_reported_and_the_rest_is_collected(tmp_path: Path) -> None:
    machine = ScriptedWindows(tmp_path)

    async def reply(script: str) -> tuple[bytes, bytes, int]:
        if "wevtutil" in script:
            await asyncio.sleep(60)
        return await machine.reply(script)

    progress: list[str] = []
    timeouts = replace(SHORT, answer=0.3)
    async with ssh_server(tmp_path, reply) as server, server.host(timeouts=timeouts) as host:
        made = await collect_logs(host, tmp_path / "found.tar.gz", progress.append)
    given_up = [
        line for line in progress if line.startswith("skipped events.txt: win-1: `wevtutil")
    ]
    assert len(given_up) == 1
    with tarfile.open(made) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "ipconfig.txt" in names
    assert "events.txt" not in names


async def test_unreachable_instance_leaves_no_archive(tmp_path: Path, unused_tcp_port: int) -> None:
    async with ssh_server(tmp_path) as server, server.host(port=unused_tcp_port) as host:
        with pytest.raises(InstanceUnreachable):
            await collect_logs(host, tmp_path / "found.tar.gz", print)
    assert names_in(tmp_path) == ["C:"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('"auth": "aGVsbG8="', '"auth": "(redacted)"'),
        ("password: hunter2", 'password: "(redacted)"'),
        ("client-key-data: aGVsbG8=", 'client-key-data: "(redacted)"'),
        ('"auth": {', '"auth": {'),
        ("serializeToken = false", "serializeToken = false"),
        ("a plain line about tokens", "a plain line about tokens"),
        ("--bootstrap abcdef.0123456789abcdef", "--bootstrap (redacted)"),
    ],
)
def test_secrets_are_redacted(text: str, left: str) -> None:
    assert redact_secrets(text) == left

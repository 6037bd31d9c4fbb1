"""Pulls of `winpod play`: the user's credentials, and an interruption."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector, web

from tests.support.play_cli import Run, home, run
from tests.support.pulls import BUILDS, until
from tests.support.registries import PASSWORD, USER, StandIn, auths, basic_registry, log_in, serve
from tests.support.winpod_cli import environment, winpod

__all__ = ["basic_registry", "home", "run"]
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: app, image: "{image}"}}]
"""
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
"""


@pytest.mark.parametrize("has_helper", [False, True], ids=["config file", "credential helper"])
def test_daemon_of_another_home_pulls_with_the_users_credentials(
    run: Run,
    home: Path,
    basic_registry: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_helper: bool,
) -> None:
    image = f"{basic_registry}/team/app:1"
    other = tmp_path / "other"
    (other / ".config/winpod").mkdir(parents=True)
    (other / ".config/winpod/config.toml").write_bytes(
        (home / ".config/winpod/config.toml").read_bytes()
    )
    log_in(other, auths(basic_registry))
    options = ("--os-version", "2022", "--cmd", "serve")
    packed = winpod("image", "pack", f"{home}/content", "-t", image, *options, home=other)
    assert packed.code == 0, packed.err
    (home / "settings.yaml").write_text(CONFIG_MAP)
    (home / "pod.yaml").write_text(POD.format(image=image))
    first = run("play", f"{home}/settings.yaml", f"{home}/app.yaml", "--layout", f"{home}/images")
    assert first.code == 0, first.out + first.err
    if has_helper:
        log_in(other, {"credHelpers": {basic_registry: "test"}})
        helper = tmp_path / "bin/docker-credential-test"
        helper.parent.mkdir()
        answer = json.dumps({"Username": USER, "Secret": PASSWORD})
        helper.write_text(f"#!/bin/sh\ncat > {tmp_path}/asked\necho '{answer}'\n")
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", str(helper.parent), prepend=":")
    played = winpod("play", f"{home}/pod.yaml", home=other)
    assert "Pulling image" in played.err
    assert "Pulled image" in played.err
    assert "shop/db-0" in played.out
    pods = json.loads(run("ps", "--pods", "-o", "json").out)["pods"]
    assert {pod["name"]: pod["isReady"] for pod in pods}["web"], played.out + played.err
    assert PASSWORD not in (home / "root/play/play.log").read_text()
    if has_helper:
        assert (tmp_path / "asked").read_text() == basic_registry


@pytest.mark.parametrize("who", ["command", "daemon"])
async def test_interrupted_pull_applies_nothing(run: Run, home: Path, who: str) -> None:
    is_pulling = asyncio.Event()
    layers = {d.digest for d, _ in BUILDS.blobs if "config" not in d.media_type}

    async def hang(request: web.Request) -> web.StreamResponse | None:
        if request.path.rpartition("/")[2] in layers:
            is_pulling.set()
            await asyncio.Event().wait()
        return None

    async with serve(StandIn(BUILDS, hang)) as registry:
        (home / "pod.yaml").write_text(POD.format(image=f"{registry}/app:1"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "winpod", "play", f"{home}/pod.yaml"),
            env=environment(home),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(120):
            await is_pulling.wait()
        if who == "command":
            process.send_signal(signal.SIGINT)
        else:
            async with (
                UnixConnector(f"{home}/root/play/play.sock") as connector,
                ClientSession(connector=connector) as session,
                session.get("http://play/process") as answer,
            ):
                os.kill((await answer.json())["id"], signal.SIGTERM)
        async with asyncio.timeout(30):
            out, err = await process.communicate()
        assert process.returncode == (130 if who == "command" else 2), err
        assert b"created" not in out
        root = home / "root"
        await until(lambda: not (root / "play/play.sock").exists())
        assert not (root / "nodes").exists()
        assert [path.name for path in (root / "ingest").iterdir()] == ["blobs"]
        images = await asyncio.to_thread(run, "images", "-o", "json")
        assert json.loads(images.out) == []
        names = await asyncio.to_thread(run, "ps", "--pods")
        assert names.out == "No pods.\n"

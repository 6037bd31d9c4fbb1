"""Pull secrets of `winpod play`."""

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.play_cli import Run, home, run
from tests.support.registries import PASSWORD, USER, auths, basic_registry, log_in
from tests.support.winpod_cli import winpod

__all__ = ["basic_registry", "home", "run"]


@pytest.fixture
def guarded(home: Path, basic_registry: str) -> str:
    """Run a registry with images for several pods; its password is not stored locally."""
    log_in(home, auths(basic_registry))
    for name in ("own", "account", "nobody"):
        tag = f"{basic_registry}/team/{name}:1"
        options = ("--os-version", "2022", "--cmd", "serve")
        pushed = winpod("image", "pack", f"{home}/content", "-t", tag, *options, home=home)
        assert pushed.code == 0, pushed.err
    (home / ".docker/config.json").unlink()
    return basic_registry


def secret(name: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    key = f".{kind.rpartition('/')[2]}"
    data = base64.b64encode(json.dumps(content).encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": kind,
        "data": {key: data},
    }


def pod(name: str, image: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": image}]
    spec = {"terminationGracePeriodSeconds": 0, "containers": containers, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_pull_secrets_of_pods_and_service_accounts_are_used(
    run: Run, home: Path, guarded: str
) -> None:
    login = {guarded: {"username": USER, "password": PASSWORD}}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "puller"},
        "imagePullSecrets": [{"name": "older"}],
    }
    documents = [
        secret("newer", "kubernetes.io/dockerconfigjson", auths(guarded)),
        secret("older", "kubernetes.io/dockercfg", login),
        account,
        pod("own", f"{guarded}/team/own:1", imagePullSecrets=[{"name": "newer"}]),
        pod("account", f"{guarded}/team/account:1", serviceAccountName="puller"),
        pod("nobody", f"{guarded}/team/nobody:1"),
        pod("typo", f"{guarded}/team/own:9", imagePullSecrets=[{"name": "newer"}]),
    ]
    (home / "pods.yaml").write_text(yaml.safe_dump_all(documents))
    played = run("play", f"{home}/pods.yaml")
    assert played.code == 1, played.out + played.err
    pods = {one["name"]: one for one in json.loads(run("ps", "--pods", "-o", "json").out)["pods"]}
    assert {name: one["isReady"] for name, one in pods.items()} == {
        "own": True,
        "account": True,
        "nobody": False,
        "typo": False,
    }
    denied = f"{guarded} requires a user name and password, and none is configured. "
    missing = f"{guarded}/team/own:9"
    for name, message in (("nobody", denied), ("typo", missing)):
        (line,) = [line for line in played.out.splitlines() if line.startswith(f"{name}: ")]
        assert message in line.partition("ErrImagePull: ")[2], line
        described = run("describe", name).out
        assert "could not be looked up" in described
        (unknown,) = [one for one in described.splitlines() if one.startswith("  unknown: ")]
        assert message in unknown

    process = json.loads((home / "root/nodes/win-2022/runtime/serving.json").read_text())
    os.kill(process["process"], signal.SIGKILL)
    after = json.loads(run("ps", "--pods", "-o", "json").out)["pods"]
    for one in after:
        before = pods[one["name"]]
        assert one["handler"] == before["handler"] == "runhcs-wcow-process"
        assert one["why"] == before["why"] != ""

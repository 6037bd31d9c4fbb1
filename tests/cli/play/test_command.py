"""`winpod play` with its background server and simulated containers."""

import json
import os
import signal
import time
from pathlib import Path
from typing import IO, Any

from tests.support.e2e.waiting import eventually
from tests.support.play_cli import Run, home, run
from tests.support.winpod_cli import started

__all__ = ["home", "run"]


def test_daemon_gets_the_log_options_of_the_command(run: Run, home: Path) -> None:
    (home / "map.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
    played = run("play", f"{home}/map.yaml", "--log-format", "json", "--log-level", "debug")
    assert played.code == 0, played.out + played.err
    lines = (home / "root/play/play.log").read_text().splitlines()
    assert "debug" in {json.loads(line)["level"] for line in lines}


def test_play_prints_changes_as_kubectl_does(run: Run, home: Path) -> None:
    played = run("play", f"{home}/app.yaml", "--layout", f"{home}/images")
    assert played.code == 0, played.out + played.err
    assert played.out.splitlines()[:4] == [
        "note: one node, 10.0.20348 (Windows Server 2022), fits all pods; --node chooses others",
        "node/win-2022 created",
        "service/db created",
        "statefulset.apps/db created",
    ]
    assert "shop/db-1" in played.out
    assert run("logs", "db-1").out == "simulated: serve\n"
    assert run("logs", "sts/db", "-c", "beside").out == "simulated: look out\n"
    assert run("logs", "db-0/beside").out == "simulated: look out\n"
    line = ("exec", "db-0", "-c", "beside", "-n", "shop", "--", "cmd", "/c", "ver")
    assert run(*line).out == "simulated: cmd /c ver\n"
    assert run("exec", "-n", "shop", "db-0", "--", "ver").out == "simulated: ver\n"
    assert run("exec", "-n", "other", "db-0", "--", "ver").code == 125
    assert len(json.loads(run("ps", "-o", "json").out)) == 4
    state = json.loads(run("ps", "--pods", "-o", "json").out)
    assert [(pod["name"], pod["ready"]) for pod in state["pods"]] == [
        ("db-0", "2/2"),
        ("db-1", "2/2"),
    ]
    events = json.loads(run("events", "db-0", "-o", "json").out)
    assert [event["reason"] for event in events][:2] == ["Scheduled", "Pulled"]
    assert "serviceName" not in run("describe", "sts", "db").out
    assert "readyReplicas: 2" in run("describe", "sts/db").out
    assert "pod/none not found" in run("describe", "none").err
    bad = run("play", f"{home}/none.yaml")
    assert (bad.code, "Traceback" in bad.err) == (2, False)
    again = run("play", f"{home}/app.yaml", "-o", "json")
    assert {change["change"] for change in json.loads(again.out)["changes"]} == {"unchanged"}
    ended = run("down")
    assert "statefulset.apps/db deleted" in ended.out
    assert run("ps", "--pods").out == "No pods.\n"
    assert run("down").out == "No objects found.\n"


def test_invalid_manifest_is_reported_and_starts_nothing(run: Run, home: Path) -> None:
    (home / "empty.yaml").write_text("---\n")
    (home / "no.yaml").write_text("a: [b\n")
    for name, message in (
        ("empty.yaml", "empty.yaml contains no objects."),
        ("no.yaml", "this is not YAML"),
        ("none.yaml", "none.yaml: No such file"),
    ):
        refused = run("play", f"{home}/{name}")
        assert (refused.code, message in refused.err) == (2, True), refused.err
    assert not (home / "root/play").exists()


def test_missing_objects_are_reported_by_kind(run: Run, home: Path) -> None:
    run("play", f"{home}/app.yaml", "--layout", f"{home}/images")
    unknown = run("port-forward", "svc/db", "81").err
    assert "Service db does not have a service port 81. It has: 5432." in unknown
    assert "Service no not found." in run("port-forward", "svc/no", "81").err
    never = run("logs", "-p", "db-0").err
    assert 'previous terminated container "main" in pod "db-0" not found.' in never
    assert "deploy/no has no pod." in run("exec", "deploy/no", "--", "cmd").err
    wrong = run("logs", "sts/db", "-c", "other")
    assert 'db-0 has no container "other". It has: beside, main.' in wrong.err


ENDING = """\
apiVersion: v1
kind: Pod
metadata: {name: ending}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: registry.example/hello:1, command: [simulate, "1", "0.1"]}]
"""


def next_document(printed: IO[str]) -> dict[str, Any]:
    """Read the next JSON document from the output."""
    text = ""
    for line in printed:
        text += line
        if line == "}\n":
            break
    document: dict[str, Any] = json.loads(text)
    return document


def changes(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change["name"], change["change"]) for change in result["changes"]]


def test_json_output_has_changes_and_state(run: Run, home: Path) -> None:
    assert json.loads(run("down", "-o", "json").out) == {"changes": []}
    line = ("play", f"{home}/app.yaml", f"{home}/ending.yaml", "--layout", f"{home}/images")
    (home / "ending.yaml").write_text(ENDING)
    result = json.loads(run(*line, "--no-wait", "-o", "json").out)
    assert changes(result)[1:] == [("db", "created"), ("ending", "created"), ("db", "created")]
    assert result["notes"][0].startswith("one node, ")
    with started("events", "-w", "-o", "json", "ending", home=home) as printed:
        reasons = [json.loads(printed.readline())["reason"] for _ in range(5)]
    assert {"Scheduled", "Started"} <= set(reasons)
    with started(*line, "--no-wait", "--watch", "-o", "json", home=home) as printed:
        assert {what for _, what in changes(next_document(printed))} == {"unchanged"}
        (home / "ending.yaml").write_text(ENDING.replace("name: ending", "name: other"))
        assert changes(next_document(printed))[:2] == [("ending", "deleted"), ("db", "unchanged")]
    output = "simulated: simulate 1 0.1\n"
    eventually(lambda: run("logs", "-p", "other"), lambda ran: ran.out == output)
    ended = json.loads(run("down", "-o", "json").out)
    assert ("other", "deleted") in changes(ended)


def test_emulation_setting_reaches_the_running_server(run: Run, home: Path) -> None:
    def play() -> int:
        assert run("play", f"{home}/app.yaml", "--layout", f"{home}/images").code == 0
        serving = (home / "root/nodes/win-2022/runtime/serving.json").read_text()
        return int(json.loads(serving)["process"])

    without = play()
    config = home / ".config/winpod/config.toml"
    config.write_text(config.read_text() + "[hypervisor]\nallow_emulation = true\n")
    allowed = play()
    assert allowed != without
    assert play() == allowed


def test_next_command_recovers_after_the_server_is_killed(run: Run, home: Path) -> None:
    run("play", f"{home}/app.yaml", "--layout", f"{home}/images")
    serving = json.loads((home / "root/nodes/win-2022/runtime/serving.json").read_text())
    os.kill(serving["process"], signal.SIGKILL)
    deadline = time.monotonic() + 300
    while True:
        pods = json.loads(run("ps", "--pods", "-o", "json").out)["pods"]
        if [pod["isReady"] for pod in pods] == [True, True]:
            break
        assert time.monotonic() < deadline

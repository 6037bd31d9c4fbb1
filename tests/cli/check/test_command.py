"""`winpod check`: reports and exit codes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.winpod_cli import Ran, winpod
from winpod.cli.check.sarif import _CAUSES, _OTHER_RULES
from winpod.placement.verdicts import Cause

DOCS = Path(__file__).parents[3] / "docs"

WEB = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  template:
    spec:
      nodeSelector:
        kubernetes.io/os: windows
      containers:
        - name: web
          image: registry.example/web:1.0
          securityContext:
            privileged: true
"""

LEGACY = """\
apiVersion: v1
kind: Pod
metadata:
  name: legacy
  namespace: shop
spec:
  os: {name: windows}
  nodeSelector:
    node.kubernetes.io/windows-build: "10.0.17763"
  containers:
    - name: app
      image: registry.example/legacy:1.0
"""

LINUX = """\
apiVersion: v1
kind: Pod
metadata: {name: proxy}
spec:
  nodeSelector: {kubernetes.io/os: linux}
  containers:
    - {name: proxy, image: registry.example/gone:1}
"""

NODE = """\
apiVersion: v1
kind: Node
metadata:
  name: win
  labels: {kubernetes.io/os: windows, node.kubernetes.io/windows-build: "10.0.20348"}
status:
  allocatable: {cpu: "4", memory: 4Gi, pods: "110"}
"""


@pytest.fixture
def check(tmp_path: Path, story_images: Path) -> Any:
    def run(text: str, *options: str) -> Ran:
        file = tmp_path / "app.yaml"
        file.write_text(text, "utf-8")
        return winpod(
            *("check", "--offline", "--layout", str(story_images), "-f", "app.yaml"),
            *options,
            home=tmp_path,
            cwd=tmp_path,
        )

    return run


def test_check_without_nodes_uses_every_supported_release(check: Any) -> None:
    ran = check(LEGACY)
    assert ran == Ran(
        0,
        """\
Pod shop/legacy  app.yaml:1  runs
  windows-2019  runs     process  10.0.17763 (Windows Server 2019)  image 10.0.17763.805
  windows-2022  blocked  -        10.0.20348 (Windows Server 2022)
      nodeSelector requires node.kubernetes.io/windows-build=10.0.17763
  windows-2025  blocked  -        10.0.26100 (Windows Server 2025)
      nodeSelector requires node.kubernetes.io/windows-build=10.0.17763

1 checked against 3 nodes: 1 runs
""",
        "",
    )


def test_report_lists_failing_nodes_ignored_fields_and_advice(check: Any) -> None:
    ran = check(WEB)
    assert ran.code == 0
    assert (
        ran.out
        == """\
Deployment default/web  app.yaml:1  may fail
  windows-2019  fails  process  10.0.17763 (Windows Server 2019)
      registry.example/web:1.0 has no build ≤ 10.0.17763; it has 10.0.20348.2113, 10.0.26100.1742\
  [no match for platform in manifest: not found]
  windows-2022  runs   process  10.0.20348 (Windows Server 2022)  image 10.0.20348.2113
  windows-2025  runs   process  10.0.26100 (Windows Server 2025)  image 10.0.26100.1742
  warning line 14: containers[0].securityContext.privileged is ignored on Windows. \
Windows has no privileged containers.
      Use a HostProcess pod: `windowsOptions.hostProcess: true` with `hostNetwork: true`.
  → add a required node affinity node.kubernetes.io/windows-build In ["10.0.20348", "10.0.26100"]

1 checked against 3 nodes: 1 may fail
"""
    )
    assert check(WEB, "--strict").code == 1


def test_json_follows_its_schema(check: Any) -> None:
    schema = json.loads((DOCS / "check.schema.json").read_text("utf-8"))
    ran = check("---\n".join((WEB, LEGACY, LINUX)), "-o", "json")
    report = json.loads(ran.out)
    jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)
    assert {w["name"]: w["status"] for w in report["workloads"]} == {
        "web": "may-fail",
        "legacy": "runs",
        "proxy": "not-windows",
    }
    assert {cause.value for cause in Cause} == set(
        schema["$defs"]["reason"]["properties"]["cause"]["enum"]
    )


def test_sarif_has_a_location_and_a_rule_for_every_result(check: Any) -> None:
    ran = check("---\n".join((WEB, LEGACY)), "-o", "sarif")
    log = json.loads(ran.out)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == rules
    seen = [
        (
            result["ruleId"],
            result["level"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for result in run["results"]
    ]
    assert seen == [
        ("placement/build", "warning", "app.yaml", 7),
        ("pod-api/privileged", "warning", "app.yaml", 14),
    ]
    text = run["results"][0]["message"]["text"]
    assert text.startswith("Deployment default/web may fail. On windows-2019: ")


def test_sarif_messages_are_sentences_and_uris_are_quoted(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/p\xff.yaml"
    Path(os.fsdecode(file)).write_text(LINUX.replace("linux", "windows"), "utf-8")
    arguments = ("check", "--offline", "-f", os.fsdecode(file), "-o", "sarif")
    ran = winpod(*arguments, home=tmp_path)
    placed, unknown = json.loads(ran.out)["runs"][0]["results"]
    assert placed["message"]["text"].startswith("Pod default/proxy may or may not run. On ")
    assert (placed["level"], unknown["ruleId"]) == ("warning", "image/unknown")
    (location,) = unknown["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("/p%FF.yaml")


def test_every_cause_has_a_sarif_description() -> None:
    assert set(_CAUSES) == set(Cause)
    assert all(rule.partition("/")[0] in ("placement", "image") for rule in _OTHER_RULES)


def test_linux_pod_gets_a_warning_for_untainted_windows_nodes(check: Any) -> None:
    stray = LINUX.replace("  nodeSelector: {kubernetes.io/os: linux}\n", "  os: {name: linux}\n")
    against_defaults = check(stray)
    assert (against_defaults.code, "may be scheduled" in against_defaults.out) == (0, False)
    ran = check(stray + "---\n" + NODE)
    assert ran.code == 0
    assert "This Linux pod may be scheduled on win, where it cannot start" in ran.out
    assert "may be scheduled" not in check(LINUX + "---\n" + NODE).out


def test_nodes_are_read_from_manifests_or_a_nodes_file(check: Any, tmp_path: Path) -> None:
    ran = check(WEB + "---\n" + NODE, "-o", "json")
    assert [n["name"] for n in json.loads(ran.out)["nodes"]] == ["win"]
    assert (ran.code, json.loads(ran.out)["workloads"][0]["status"]) == (0, "runs")
    (tmp_path / "nodes.yaml").write_text(NODE, "utf-8")
    assert check(WEB, "--nodes", "nodes.yaml").code == 0


def test_pods_bound_in_the_nodes_file_use_resources(check: Any, tmp_path: Path) -> None:
    bound = """\
apiVersion: v1
kind: Pod
metadata: {name: bound}
spec:
  nodeName: win
  containers: [{name: a, image: a, resources: {requests: {memory: 3Gi}}}]
"""
    hungry = WEB.replace(
        "          securityContext:\n            privileged: true\n",
        "          resources: {requests: {memory: 2Gi}}\n",
    )
    (tmp_path / "nodes.yaml").write_text(NODE, "utf-8")
    assert check(hungry, "--nodes", "nodes.yaml").code == 0
    (tmp_path / "nodes.yaml").write_text(NODE + "---\n" + bound, "utf-8")
    ran = check(hungry, "--nodes", "nodes.yaml")
    assert ran.code == 1
    assert "memory: requests 2Gi; 1Gi of 4Gi is free" in ran.out
    assert "→ lower the requests for memory to 1Gi" in ran.out
    (tmp_path / "nodes.yaml").write_text(
        NODE + "---\n" + bound + "status: {phase: Succeeded}\n", "utf-8"
    )
    assert check(hungry, "--nodes", "nodes.yaml").code == 0


def test_changed_handler_of_a_class_is_reported(check: Any, tmp_path: Path) -> None:
    old = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: c}}\nhandler: {}\n"
    (tmp_path / "nodes.yaml").write_text(NODE + "---\n" + old.format("docker"), "utf-8")
    new = old.format("runhcs-wcow-process")
    ran = check(WEB + "---\n" + new, "--nodes", "nodes.yaml")
    assert "RuntimeClass c has handler docker now and the field is immutable" in ran.out


def test_manifests_are_read_from_stdin(story_images: Path, tmp_path: Path) -> None:
    ran = winpod(
        *("check", "--offline", "--layout", str(story_images), "-f", "-"),
        home=tmp_path,
        stdin=LEGACY,
    )
    assert (ran.code, "<stdin>:1" in ran.out) == (0, True)


def test_image_not_in_cache_is_unknown_offline(check: Any) -> None:
    ran = check(LEGACY.replace("legacy:1.0", "nowhere:1"), "-o", "json")
    (workload,) = json.loads(ran.out)["workloads"]
    assert (ran.code, workload["status"]) == (1, "unknown")
    assert workload["problems"][0]["rule"] == "image/unknown"


def test_build_is_inferred_from_tag_with_a_note(check: Any) -> None:
    ran = check(LEGACY.replace("legacy:1.0", "windows/legacy:ltsc2019"), "-o", "json")
    (workload,) = json.loads(ran.out)["workloads"]
    assert (ran.code, workload["status"]) == (0, "runs")
    assert workload["images"][0]["guessed"] is True
    assert workload["problems"][0]["rule"] == "image/guessed"


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("kind: Pod\nmetadata: {name: [}", (), "app.yaml:2: this is not YAML"),
        (
            LEGACY.replace("image: registry.example/legacy:1.0", "image: 5"),
            (),
            "app.yaml:12: spec.",
        ),
        (
            "kind: Service\napiVersion: v1\n",
            (),
            "app.yaml contains no workload to check (1 of other kinds).",
        ),
        (LEGACY, ("-f", "gone.yaml"), "cannot read gone.yaml: No such file or directory."),
        (LEGACY, ("--nodes", "app.yaml"), "app.yaml contains no Node object."),
        (
            LEGACY,
            ("--nodes", "a", "--kubeconfig", "b"),
            "--nodes and --kubeconfig are mutually exclusive.",
        ),
        (LEGACY, ("--context", "a"), "--context requires --kubeconfig."),
        (LEGACY, ("--kubeconfig", "gone"), "gone does not exist."),
        (LEGACY, ("--kubeconfig", "app.yaml"), "app.yaml is not a valid kubeconfig"),
        (LEGACY, ("--layout", "gone"), "gone"),
        (LEGACY, ("-o", "xml"), "xml"),
    ],
)
def test_bad_input_prints_an_error_and_exits_2(
    check: Any, text: str, options: tuple[str, ...], sentence: str
) -> None:
    ran = check(text, *options)
    assert ran.code == 2
    assert ran.out == ""
    assert sentence in ran.err
    assert "Traceback" not in ran.err


def test_unreachable_api_server_is_reported(check: Any, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
users: [{name: u, user: {token: t}}]
""",
        "utf-8",
    )
    ran = check(LEGACY, "--kubeconfig", "config")
    assert (ran.code, ran.out) == (2, "")
    assert "the API server of config did not respond" in ran.err
    missing = check(LEGACY, "--kubeconfig", "config", "--context", "other")
    assert (missing.code, "Traceback" in missing.err) == (2, False)


def test_report_has_colours_on_a_terminal(story_images: Path, tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(LEGACY, "utf-8")
    command = [sys.executable, "-m", "winpod", "check", "--offline", "-f", str(file)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, "--layout", str(story_images)],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "xterm-256color"},
    ) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b[1;32mruns" in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a pty reports a closed peer with EIO
        return b""


def run_into(output: str, story_images: Path, tmp_path: Path, **environment: str) -> Ran:
    """Run the command with a shell redirection, such as `> /dev/full` or `| head -0`."""
    (tmp_path / "app.yaml").write_text(WEB, "utf-8")
    arguments = f"-m winpod check --offline --layout {story_images} -f app.yaml"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} {arguments} {output}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), **environment},
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("output", "code", "complaint"),
    [
        ("| true", 141, ""),
        (">&-", 0, ""),
        ("> /dev/full", 74, "winpod: stdout: No space left on device.\n"),
    ],
)
def test_closed_or_full_output_prints_no_traceback(
    story_images: Path, tmp_path: Path, output: str, code: int, complaint: str
) -> None:
    ran = run_into(output, story_images, tmp_path)
    assert (ran.code, ran.out, ran.err) == (code, "", complaint)


def test_report_is_printed_on_an_ascii_terminal(story_images: Path, tmp_path: Path) -> None:
    ran = run_into("", story_images, tmp_path, PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert "has no build \\u2264 10.0.17763" in ran.out


def test_interrupt_prints_no_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "app.yaml"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "winpod", "check", "-f", str(fifo)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process,
        fifo.open("wb"),  # blocks until the command reads it
    ):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err

"""`winpod runtimeclass render`."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.winpod_cli import winpod

EXAMPLES = Path(__file__).parents[2] / "examples"
GUEST = "runhcs-wcow-hypervisor-17763"


def windows_node(name: str, runtime: str, **labels: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", **labels},
        },
        "spec": {"taints": [{"key": "os", "value": "windows", "effect": "NoSchedule"}]},
        "status": {
            "nodeInfo": {"kernelVersion": "10.0.20348.1", "containerRuntimeVersion": runtime},
            "runtimeHandlers": [{"name": "runhcs-wcow-process"}, {"name": GUEST}],
        },
    }


def test_render_prints_the_classes_of_the_first_story(tmp_path: Path) -> None:
    ran = winpod(
        "runtimeclass", "render", "--nodes", f"{EXAMPLES}/story-1/nodes.yaml", home=tmp_path
    )
    assert ran.code == 0, ran.err
    made = {obj["metadata"]["name"]: obj for obj in yaml.safe_load_all(ran.out)}
    assert made.keys() == {"windows-2019", "windows-1903"}
    kept = yaml.safe_load_all((EXAMPLES / "story-1/classes.yaml").read_text())
    written = [obj["scheduling"] for obj in kept]
    assert [made[name]["scheduling"] for name in ("windows-2019", "windows-1903")] == written
    assert not ran.err


def test_rendered_classes_work_with_check(tmp_path: Path) -> None:
    nodes = str(EXAMPLES / "story-1/nodes.yaml")
    ran = winpod("runtimeclass", "render", "--nodes", nodes, home=tmp_path)
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {runtimeClassName: windows-2019"
    container = "containers: [{name: c, image: 'example.test/app:ltsc2019'}]}}"
    (tmp_path / "all.yaml").write_text(f"{ran.out}---\n{pod}, {container}\n")
    checked = winpod(
        *("check", "-f", str(tmp_path / "all.yaml"), "--nodes", nodes, "--offline", "-o", "json"),
        home=tmp_path,
    )
    assert [w["status"] for w in json.loads(checked.out)["workloads"]] == ["runs"], checked.err


def test_missing_node_labels_are_reported(tmp_path: Path) -> None:
    nodes = [windows_node("a", "containerd://2.1.0"), windows_node("b", "winpod://0.1.0")]
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    ran = winpod("runtimeclass", "render", "--nodes", str(file), "-o", "json", home=tmp_path)
    names = [obj["metadata"]["name"] for obj in json.loads(ran.out)["items"]]
    assert names == ["windows-2019-hyperv", "windows-2022"]
    build = "node.kubernetes.io/windows-build=10.0.20348"
    assert f"kubectl label node a {build}\n" in ran.err
    assert f"kubectl label node b handler.winpod.dev/{GUEST}=true {build}\n" in ran.err


def test_render_uses_the_operator_settings(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("classes: {name: 'win-{number}'}")
    nodes = str(EXAMPLES / "story-1/nodes.yaml")
    options = ("runtimeclass", "render", "--nodes", nodes, "--config", str(config))
    ran = winpod(*options, home=tmp_path)
    assert {o["metadata"]["name"] for o in yaml.safe_load_all(ran.out)} == {
        "win-17763",
        "win-18362",
    }
    config.write_text("classes: {nmae: x}")
    ran = winpod(*options, home=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "config.yaml: classes.nmae is not a setting" in ran.err


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("", ("--nodes", "FILE"), "FILE contains no Node object."),
        (
            "{kind: Node, apiVersion: v1, metadata: {name: a}}",
            ("--nodes", "FILE"),
            "no RuntimeClass applies",
        ),
        ("", (), "either --nodes or --kubeconfig is required."),
        ("", ("--nodes", "FILE", "--kubeconfig", "FILE"), "Give one of them."),
        ("", ("--nodes", "FILE", "--context", "c"), "--context requires --kubeconfig"),
        ("", ("--nodes", "FILE", "--config", "gone"), "gone cannot be read"),
    ],
)
def test_bad_input_is_reported(
    tmp_path: Path, content: str, options: tuple[str, ...], sentence: str
) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(content)
    filled = [option.replace("FILE", str(file)) for option in options]
    ran = winpod("runtimeclass", "render", *filled, home=tmp_path)
    assert ran.code == 2
    assert sentence.replace("FILE", str(file)) in ran.err

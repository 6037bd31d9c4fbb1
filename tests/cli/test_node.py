"""`winpod node` that cannot begin says why in a sentence, and ends; options are what they say."""

from pathlib import Path

import pytest
import typer

from tests.cli.winpod import winpod
from winpod.cli.node import command, registered_taints

BAD_INPUT = 2


@pytest.mark.parametrize("kind", [("--simulated",), ()], ids=["simulated", "real"])
def test_a_kubeconfig_that_is_not_there_is_named_and_nothing_is_made(
    tmp_path: Path, kind: tuple[str, ...]
) -> None:
    arguments = ("--kubeconfig", "none", *kind, "--root", str(tmp_path / "root"))
    ran = winpod("node", *arguments, home=tmp_path, cwd=tmp_path)
    assert not list((tmp_path / "root").glob("*"))
    assert (ran.code, ran.out) == (BAD_INPUT, "")
    assert ran.err == f"winpod: {tmp_path / 'none'} does not exist. --kubeconfig names it.\n"


TOKEN = ("--token", "abcdef.0123456789abcdef", "--server", "https://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (*TOKEN, "--certificate-authority", "none.pem"),
            "none.pem has no authority to believe: No such file or directory. "
            "--certificate-authority names",
        ),
        (
            (*TOKEN, "--certificate-authority", "text"),
            "text has no authority to believe: no start line",
        ),
        (
            (*TOKEN, "--certificate-authority", "empty"),
            "empty has no authority to believe: it is empty",
        ),
        (
            ("--bootstrap-kubeconfig", "none"),
            "none does not exist. --bootstrap-kubeconfig names it.",
        ),
        (("--nodes", "none.yaml"), "none.yaml is no file of nodes"),
    ],
)
def test_files_that_options_name_and_that_are_of_no_use_are_named(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "empty").touch()
    common = ("--kubeconfig", "new", "--simulated", "--root", str(tmp_path / "root"))
    ran = winpod("node", *common, *arguments, home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert ran.err.startswith(f"winpod: {sentence}")
    assert ran.err.count("\n") == 1


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    common = ("--kubeconfig", "new", *TOKEN)
    ran = winpod("node", *common, "--manifests", "file", home=tmp_path, cwd=tmp_path)
    assert ran.err.startswith("winpod: file is no directory. --manifests names one")
    ran = winpod("node", *common, "--root", "file", home=tmp_path, cwd=tmp_path)
    assert ran.err.startswith(f"winpod: {tmp_path}/file cannot be the root: File exists.")


def test_a_node_that_nothing_of_the_machine_is_left_for_is_named(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: all, memory: 4000Ti}, {name: none}]")
    arguments = ("--kubeconfig", "none", "--nodes", str(nodes), "--root", str(tmp_path / "root"))
    ran = winpod("node", *arguments, home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert "machine's memory is left for the node none" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("options", "taints"),
    [
        ((), ["os=windows:NoSchedule"]),
        (("--register-taint", ""), []),
        (
            ("--register-taint", "new:NoExecute", "--register-taint", "a=b:NoSchedule"),
            ["new:NoExecute", "a=b:NoSchedule"],
        ),
    ],
    ids=["default", "none", "two"],
)
def test_taints_are_those_that_are_told_and_none_where_none_is(
    options: tuple[str, ...], taints: list[str]
) -> None:
    app = typer.Typer()
    app.command()(command)
    given = typer.main.get_command(app).make_context("node", ["--kubeconfig", "none", *options])
    found = registered_taints(given.params["register_taint"])
    assert [str(taint) for taint in found] == taints

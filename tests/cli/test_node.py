"""`winpod node` that cannot begin says why in a sentence, and ends."""

from pathlib import Path

import pytest

from tests.cli.winpod import winpod

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


def test_a_node_that_nothing_of_the_machine_is_left_for_is_named(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: all, memory: 4000Ti}, {name: none}]")
    arguments = ("--kubeconfig", "none", "--nodes", str(nodes), "--root", str(tmp_path / "root"))
    ran = winpod("node", *arguments, home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert "machine's memory is left for the node none" in ran.err
    assert "Traceback" not in ran.err

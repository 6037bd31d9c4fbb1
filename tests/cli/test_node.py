"""Invalid options of `winpod node`."""

from pathlib import Path

import pytest

from tests.support.winpod_cli import winpod

BAD_INPUT = 2


@pytest.mark.parametrize("kind", [("--simulated",), ()], ids=["simulated", "real"])
def test_missing_kubeconfig_is_reported_and_nothing_is_created(
    tmp_path: Path, kind: tuple[str, ...]
) -> None:
    arguments = ("--kubeconfig", "none", *kind, "--root", str(tmp_path / "root"))
    ran = winpod("node", *arguments, home=tmp_path, cwd=tmp_path)
    assert not list((tmp_path / "root").glob("*"))
    assert (ran.code, ran.out) == (BAD_INPUT, "")
    missing = tmp_path / "none"
    advice = "Set --kubeconfig to an existing file."
    assert ran.err == f"winpod: {missing} does not exist. {advice}\n"


TOKEN = ("--token", "abcdef.0123456789abcdef", "--server", "https://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (*TOKEN, "--certificate-authority", "none.pem"),
            "Failed to read the CA bundle none.pem: No such file or directory. "
            "Set --certificate-authority",
        ),
        (
            (*TOKEN, "--certificate-authority", "text"),
            "Failed to read the CA bundle text: no start line",
        ),
        (
            (*TOKEN, "--certificate-authority", "empty"),
            "Failed to read the CA bundle empty: it is empty",
        ),
        (
            ("--bootstrap-kubeconfig", "none"),
            "none does not exist. Set --bootstrap-kubeconfig to an existing file.",
        ),
        (("--nodes", "none.yaml"), "none.yaml is not a valid node file"),
    ],
)
def test_unusable_files_of_options_are_reported(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "empty").touch()
    common = ("--kubeconfig", "new", "--simulated", "--root", str(tmp_path / "root"))
    ran = winpod("node", *common, *arguments, home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert ran.err.startswith(f"winpod: {sentence}")
    assert ran.err.count("\n") == 1


def test_file_instead_of_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    common = ("--kubeconfig", "new", *TOKEN)
    ran = winpod("node", *common, "--manifests", "file", home=tmp_path, cwd=tmp_path)
    assert ran.err.startswith("winpod: file is not a directory. Set --manifests to a directory")
    ran = winpod("node", *common, "--root", "file", home=tmp_path, cwd=tmp_path)
    assert ran.err.startswith(
        f"winpod: Cannot use {tmp_path}/file as the root directory: File exists."
    )


def test_node_without_remaining_capacity_is_reported(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: all, memory: 4000Ti}, {name: none}]")
    arguments = ("--kubeconfig", "none", "--nodes", str(nodes), "--root", str(tmp_path / "root"))
    ran = winpod("node", *arguments, home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert "The machine has no memory left for node none" in ran.err
    assert "Traceback" not in ran.err


def test_certificate_without_key_is_reported(tmp_path: Path) -> None:
    common = ("--kubeconfig", "new", *TOKEN, "--root", str(tmp_path / "root"))
    ran = winpod("node", *common, "--tls-cert-file", "c.pem", home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert ran.err.startswith("winpod: --tls-cert-file and --tls-private-key-file must be given")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--build", "3.11"),
        ("--label", "rack"),
        ("--register-taint", "os"),
        ("--system-reserved", "gpu=1"),
        ("--eviction-hard", "memory.available"),
        ("--minimum-image-ttl-duration", "long"),
        ("--cluster-cidr", "10.0.0.0"),
    ],
)
def test_invalid_value_is_reported_before_anything_is_created(
    tmp_path: Path, option: str, value: str
) -> None:
    common = ("--kubeconfig", "new", *TOKEN, "--root", str(tmp_path / "root"))
    ran = winpod("node", *common, option, f"{value}?", home=tmp_path, cwd=tmp_path)
    assert ran.code == BAD_INPUT
    assert value.partition("=")[0] in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "root").exists()

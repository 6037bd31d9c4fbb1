"""Extras of the package: each command works with the packages of its extra."""

import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import grimp
import pytest

from winpod.cli.extras import EXTRAS, PACKAGES
from winpod.cli.main import COMMANDS, module_of

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MODULES = {package: module for module, package in PACKAGES.items()}
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

blocked = set(sys.argv.pop(1).split(","))

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from winpod.cli.main import main
main()
"""


def modules_of(requirements: list[str]) -> set[str]:
    """Return the optional modules that the requirements install."""
    modules: set[str] = set()
    for requirement in requirements:
        name = requirement.partition(">")[0]
        if name.startswith("winpod["):
            modules |= modules_of_extra(name.removeprefix("winpod[").removesuffix("]"))
        elif name in MODULES:
            modules.add(MODULES[name])
    return modules


def modules_of_extra(extra: str) -> set[str]:
    return modules_of(PROJECT["optional-dependencies"][extra])


def needed_by(command: str) -> set[str]:
    """Return the optional modules that the command may use."""
    return modules_of_extra(EXTRAS[command]) if command in EXTRAS else set()


def run_without(modules: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, ",".join(modules), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@cache
def import_graph() -> grimp.ImportGraph:
    graph = grimp.build_graph(
        "winpod",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
    for module in graph.find_modules_directly_imported_by("winpod.cli.operator"):
        if module.startswith("winpod.instances"):  # of --payload, which names the extra
            graph.remove_import(importer="winpod.cli.operator", imported=module)
    return graph


def test_optional_packages_are_those_of_the_extras() -> None:
    assert modules_of_extra("all") == set(PACKAGES)
    assert not modules_of(PROJECT["dependencies"])


def test_commands_with_extras_exist() -> None:
    assert EXTRAS.keys() <= COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_command_starts_with_the_packages_of_its_extra(command: str) -> None:
    ran = run_without(PACKAGES.keys() - needed_by(command), command, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_imports_nothing_later_that_its_extra_lacks(command: str) -> None:
    imported = import_graph().find_upstream_modules(module_of(command))
    assert imported & PACKAGES.keys() <= needed_by(command)


@pytest.mark.parametrize(("command", "extra"), EXTRAS.items())
def test_command_without_its_extra_names_it(command: str, extra: str) -> None:
    ran = run_without(set(PACKAGES), command, "--help")
    assert ran.returncode == 2
    assert ran.stderr.startswith(
        f"winpod: winpod {command} needs packages that are not installed ("
    )
    assert ran.stderr.endswith(f"). Install them with: pip install 'winpod[{extra}]'\n")
    assert ran.stderr.count("\n") == 1


def test_operator_of_instances_without_their_extra_names_it(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a,"
        " contexts: [{name: a, context: {cluster: a, user: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: a, user: {token: t}}]}"
    )
    arguments = ("operator", "--kubeconfig", str(kubeconfig), "--payload", str(tmp_path))
    ran = run_without(PACKAGES.keys() - modules_of_extra("operator"), *arguments)
    assert ran.returncode == 2
    assert "winpod operator --payload needs packages that are not installed" in ran.stderr
    assert ran.stderr.endswith("Install them with: pip install 'winpod[instances]'\n")

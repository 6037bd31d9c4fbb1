"""`with_options`: options declared by dataclasses."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from winpod.cli.options import with_options


@dataclass(frozen=True, slots=True)
class Server:
    address: Annotated[str, typer.Option("--address", help="Listen address.")]
    port: Annotated[int, typer.Option("--port", help="Port.")] = 80


@dataclass(frozen=True, slots=True)
class Labels:
    label: Annotated[list[str] | None, typer.Option("--label")] = None
    server: Annotated[str, typer.Option("--server")] = "none"


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()

    @app.command()
    @with_options
    def command(
        *,
        name: Annotated[str, typer.Argument()],
        server: Server,
        quiet: Annotated[bool, typer.Option("--quiet")] = False,
        labels: Labels,
    ) -> None:
        """Serve."""
        print(name, server, quiet, labels, sep="|")

    ran = CliRunner().invoke(app, arguments)
    return ran.exit_code, ran.output


def test_options_are_passed_as_dataclasses() -> None:
    given = ("web", "--port", "81", "--address", "::1", "--label", "a", "--label", "b", "--quiet")
    assert run(*given) == (
        0,
        f"web|{Server('::1', 81)}|True|{Labels(['a', 'b'])}\n",
    )


def test_fields_without_an_option_have_their_defaults() -> None:
    assert run("web", "--address", "a") == (0, f"web|{Server('a')}|False|{Labels()}\n")


def test_parameter_may_have_the_name_of_another_groups_option() -> None:
    code, output = run("web", "--address", "a", "--server", "b")
    assert (code, output) == (0, f"web|{Server('a')}|False|{Labels(server='b')}\n")


def test_field_without_default_is_a_required_option() -> None:
    code, output = run("web")
    assert code == 2
    assert "Missing option" in output


def test_help_lists_options_in_order_of_declaration() -> None:
    _, output = run("--help")
    assert "Serve." in output
    options = ("--address", "--port", "--quiet", "--label", "--server")
    positions = [output.index(option) for option in options]
    assert positions == sorted(positions)


def test_duplicate_option_names_are_an_error() -> None:
    def command(first: Server, second: Server) -> None:
        del first, second

    with pytest.raises(ValueError, match="duplicate parameter name"):
        with_options(command)

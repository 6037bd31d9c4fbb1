"""docs/instances.md matches the tables and the defaults in the code."""

from pathlib import Path

from winpod.instances import paths
from winpod.instances.software.programs import PROGRAMS, PayloadProgram
from winpod.operator.instance_settings import InstanceSettings
from winpod.operator.settings import read_settings

DOCUMENT = (Path(__file__).parents[2] / "docs/instances.md").read_text()


def row(program: PayloadProgram) -> str:
    needed = "yes" if program.is_required else ""
    users = ", ".join(program.used_by)
    cells = [f"`{program.name}`", f"`{program.directory}`", needed, users]
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def test_document_lists_every_program() -> None:
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| `") and ".exe` |" in line]
    assert rows == [row(program) for program in PROGRAMS.values()]


def test_document_shows_the_default_settings() -> None:
    shown = DOCUMENT.partition("```yaml\n")[2].partition("```")[0]
    assert read_settings(shown).instances == InstanceSettings()


def test_document_names_every_managed_directory() -> None:
    for path in (*paths.SHARED, *paths.OWNED):
        short = path.removeprefix(paths.LOGS)
        assert path in DOCUMENT or f"`...{short}`" in DOCUMENT, path

"""Module names and help texts use the field's terms, and none of the names they had before."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import winpod
from winpod.cli.main import COMMANDS, load

OLD_NAMES = {
    *("ahead", "beginning", "blueprint", "care", "changing", "choosing", "contradictions"),
    *("deciding", "deeds", "ending", "fate", "fitness", "following", "foreign", "furnish"),
    *("gathering", "happenings", "holding", "house", "judging", "kit", "leading", "leavings"),
    *("looking", "measuring", "patience", "pulling", "reaching", "recognise", "relief"),
    *("reporting", "room", "saying", "surveying", "taking", "telling", "tidying", "timings"),
    *("turns", "utils", "wanted", "wanting", "whom"),
}
"""Names of modules before they were renamed to the terms of the kubelet and containerd."""

DIALECT = re.compile(
    r"\b(who|whoever|whom|nobody|anybody|told|tells|anew|of ours|affair|is no|are no"
    r"|what is there|leads? a port|furnish|leavings|happenings|tidy|tidying|telling)\b",
    re.IGNORECASE,
)


def modules() -> Iterator[str]:
    root = Path(winpod.__file__).parent
    for file in root.rglob("*.py"):
        yield str(file.relative_to(root).with_suffix(""))


def help_texts(command: Any, path: str) -> Iterator[tuple[str, str]]:
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from help_texts(subcommand, f"{path} {name}")


def test_module_names_are_the_fields_terms() -> None:
    found = {module for module in modules() if OLD_NAMES & {*re.split("[/_]", module)}}
    assert not found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_plain_english(name: str) -> None:
    found = {path: text for path, text in help_texts(load(name), name) if DIALECT.search(text)}
    assert not found


@pytest.mark.parametrize(
    "text",
    ["Whom to believe when joining.", "Lead a port here.", "Is told of it.", "There is no X."],
)
def test_dialect_is_found(text: str) -> None:
    assert DIALECT.search(text)

"""Batch files: arguments arrive unchanged, and output is split into sections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.instances.errors import InstanceUnreachable
from winpod.instances.planner.desired import DesiredService
from winpod.instances.ssh.executor import service_lines
from winpod.instances.ssh.scripts import (
    MAX_LINE,
    UnexpectedOutput,
    batch_file,
    call_program,
    last_line,
    quote_argument,
    quote_path,
    read_networks,
    read_sections,
    remove_network,
    sectioned_batch,
)
from winpod.windows.command_line import split

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"))


def read_by_cmd(line: str) -> str:
    """Return what cmd passes to a program: in a batch file %% is one %, and ^ escapes."""
    text, position, quoted = "", 0, False
    line = line.replace("%%", "%")
    while position < len(line):
        character = line[position]
        if character == "^" and not quoted:
            position += 1
            text += line[position]
        else:
            assert quoted or character not in "&|<>()"
            quoted ^= character == '"'
            text += character
        position += 1
    return text


@given(TEXTS)
def test_any_argument_arrives_unchanged(text: str) -> None:
    assert split(read_by_cmd(call_program("program.exe", text)))[1:] == [text]


def test_command_line_of_a_service_keeps_quotes_and_operators() -> None:
    line = r'"C:\Program Files\k\a.exe" --x="1 2" --p=100% --y=a&b|c>d^e (f)'
    create = service_lines(DesiredService("a", line, ("b", "c")), "create")[0]
    arguments = split(read_by_cmd(create))
    assert arguments == [
        "sc.exe",
        "create",
        "a",
        "binPath=",
        line,
        "start=",
        "auto",
        "depend=",
        "b/c",
    ]


def test_change_to_no_dependencies_is_explicit() -> None:
    changed = service_lines(DesiredService("a", "a.exe"), "config")[0]
    assert split(read_by_cmd(changed))[-2:] == ["depend=", "/"]
    assert "depend=" not in service_lines(DesiredService("a", "a.exe"), "create")[0]


def test_restart_delays_are_milliseconds() -> None:
    failure = service_lines(DesiredService("a", "a.exe", restarts=(10_000, 20_000)), "create")[2]
    assert failure.endswith("reset= 300 actions= restart/10000/restart/20000")


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b"])
def test_line_breaks_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput):
        quote_argument(text)
    with pytest.raises(InvalidInput):
        quote_path(text)


def test_quoted_paths_and_long_lines_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="quote"):
        quote_path('C:\\a"b')
    with pytest.raises(InvalidInput, match="8191"):
        batch_file(["x" * (MAX_LINE + 1)])


@given(st.lists(st.tuples(st.text("ab#\n 1"), st.integers(-9, 9)), max_size=5))
def test_output_is_split_into_sections(parts: list[tuple[str, int]]) -> None:
    script, mark = sectioned_batch([("rem",)] * len(parts))
    assert script.count(mark.encode()) == len(parts)
    printed = "".join(f"{text}{mark} {code}\n" for text, code in parts)
    found = read_sections(printed, mark, len(parts))
    assert [(section.text, section.code) for section in found] == parts
    with pytest.raises(InstanceUnreachable, match="the output ended after"):
        read_sections(printed, mark, len(parts) + 1)


def test_last_line_skips_empty_lines() -> None:
    assert last_line("a\n\nFAILED 5:\n\nAccess is denied.\n \n") == "Access is denied"
    assert last_line(" \n") == "no output"


def test_powershell_gets_only_network_ids() -> None:
    with pytest.raises(InvalidInput):
        remove_network("' | Remove-Item")
    for odd in ("no JSON", "[1]"):
        with pytest.raises(UnexpectedOutput):
            read_networks(odd)

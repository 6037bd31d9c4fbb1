"""Batch files: any argument arrives at its program as it was, and any answer comes apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.instances.errors import Unreachable
from winpod.instances.remote.acting import service_lines
from winpod.instances.remote.powershell import read_networks, remove_network
from winpod.instances.remote.scripts import (
    LONGEST_LINE,
    OddAnswer,
    batch,
    call,
    in_sections,
    last_line,
    place,
    read_sections,
    word,
)
from winpod.instances.rules.desired import WantedService
from winpod.windows.command_line import split
from winpod.windows.errors import InvalidInput

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"))


def read_by_cmd(line: str) -> str:
    """What cmd hands to a program: in a batch file %% is one, and ^ hides what follows it."""
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
def test_any_argument_arrives_as_it_is(text: str) -> None:
    assert split(read_by_cmd(call("program.exe", text)))[1:] == [text]


def test_a_service_s_command_line_keeps_its_quotes_and_signs() -> None:
    line = r'"C:\Program Files\k\a.exe" --x="1 2" --p=100% --y=a&b|c>d^e (f)'
    create = service_lines(WantedService("a", line, ("b", "c")), "create")[0]
    words = split(read_by_cmd(create))
    assert words == ["sc.exe", "create", "a", "binPath=", line, "start=", "auto", "depend=", "b/c"]


def test_a_service_that_depends_on_nothing_is_told_so_when_it_changes() -> None:
    changed = service_lines(WantedService("a", "a.exe"), "config")[0]
    assert split(read_by_cmd(changed))[-2:] == ["depend=", "/"]
    assert "depend=" not in service_lines(WantedService("a", "a.exe"), "create")[0]


def test_delays_are_milliseconds() -> None:
    failure = service_lines(WantedService("a", "a.exe", restarts=(10_000, 20_000)), "create")[2]
    assert failure.endswith("reset= 300 actions= restart/10000/restart/20000")


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b"])
def test_what_no_line_can_carry_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        word(text)
    with pytest.raises(InvalidInput):
        place(text)


def test_a_path_with_a_quote_and_a_line_that_is_too_long_are_refused() -> None:
    with pytest.raises(InvalidInput, match="quote"):
        place('C:\\a"b')
    with pytest.raises(InvalidInput, match="8191"):
        batch(["x" * (LONGEST_LINE + 1)])


@given(st.lists(st.tuples(st.text("ab#\n 1"), st.integers(-9, 9)), max_size=5))
def test_an_answer_comes_apart_into_what_each_part_said(parts: list[tuple[str, int]]) -> None:
    script, mark = in_sections([("rem",)] * len(parts))
    assert script.count(mark.encode()) == len(parts)
    printed = "".join(f"{text}{mark} {code}\n" for text, code in parts)
    found = read_sections(printed, mark, len(parts))
    assert [(section.text, section.code) for section in found] == parts
    with pytest.raises(Unreachable, match="broke off"):
        read_sections(printed, mark, len(parts) + 1)


def test_the_last_line_is_the_last_that_says_something() -> None:
    assert last_line("a\n\nFAILED 5:\n\nAccess is denied.\n \n") == "Access is denied"
    assert last_line(" \n") == "nothing was said"


def test_powershell_is_given_only_ids() -> None:
    with pytest.raises(InvalidInput):
        remove_network("' | Remove-Item")
    for odd in ("no JSON", "[1]"):
        with pytest.raises(OddAnswer):
            read_networks(odd)

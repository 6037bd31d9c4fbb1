"""Program files lose what only debuggers read, and nothing else."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.images.windows_files import MARK, SECTION_ALIGNMENT, program
from winpod.images.pe import Machine, machine_of, without_debugging

DEBUGGING = {".debug_info": b"i" * 5000, ".debug_abbrev": b"a" * 700}
CODE = {".text": b"code" * 300, ".data": b"data"}


def sections(data: bytes) -> int:
    return int.from_bytes(data[0x86:0x88], "little")


def headers(data: bytes) -> int:
    return int.from_bytes(data[0x98 + 60 : 0x98 + 64], "little")


def test_debugging_sections_go_and_the_others_stay() -> None:
    plain, full = program(CODE, symbols=False), program({**CODE, **DEBUGGING})
    slim = without_debugging(full)
    assert sections(slim) == len(CODE)
    assert slim[headers(slim) :] == plain[headers(plain) :]
    assert full.startswith(slim[headers(slim) :], headers(slim))
    assert struct.unpack_from("<2I", slim, 0x8C) == (0, 0)  # no symbols
    assert struct.unpack_from("<I", slim, 0x98 + 56)[0] == 3 * SECTION_ALIGNMENT
    assert struct.unpack_from("<I", slim, 0x98 + 64)[0] == 0  # no checksum that is wrong


def test_wines_own_mark_stays() -> None:
    assert without_debugging(program({**CODE, **DEBUGGING}))[0x40:].startswith(MARK)


def test_a_slim_file_stays_as_it_is() -> None:
    slim = without_debugging(program({**CODE, **DEBUGGING}))
    assert without_debugging(slim) == slim


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"MZ",
        b"text",
        b"MZ".ljust(64, b"\xff"),
        program(CODE, symbols=False),
        program({".text": b"code", **DEBUGGING, ".late": b"data"}),
        program(DEBUGGING),
        program(CODE)[:0x90],
    ],
)
def test_what_cannot_be_made_smaller_safely_is_left_alone(data: bytes) -> None:
    assert without_debugging(data) == data


@settings(max_examples=1000)
@given(st.binary(max_size=64), st.integers(0, 0x400))
def test_a_damaged_file_is_no_error(noise: bytes, place: int) -> None:
    whole = bytearray(program({**CODE, **DEBUGGING}))
    whole[place : place + len(noise)] = noise
    assert len(without_debugging(bytes(whole))) <= len(whole)


@pytest.mark.parametrize("machine", Machine)
def test_a_program_tells_its_machine(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "program.exe"
    file.write_bytes(program(machine=machine))
    assert machine_of(file) == machine


def test_a_file_that_is_no_program_has_no_machine(tmp_path: Path) -> None:
    file = tmp_path / "script.bat"
    file.write_text("@echo off\n")
    assert machine_of(file) is None

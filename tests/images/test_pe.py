"""Stripping of PE files, and detection of their machine."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.windows_files import MARK, SECTION_ALIGNMENT, program
from winpod.images.pe import PeMachine, pe_machine, strip_debug_data

DEBUGGING = {".debug_info": b"i" * 5000, ".debug_abbrev": b"a" * 700}
CODE = {".text": b"code" * 300, ".data": b"data"}


def sections(data: bytes) -> int:
    return int.from_bytes(data[0x86:0x88], "little")


def headers(data: bytes) -> int:
    return int.from_bytes(data[0x98 + 60 : 0x98 + 64], "little")


def test_strip_removes_only_debug_sections() -> None:
    plain, full = program(CODE, symbols=False), program({**CODE, **DEBUGGING})
    slim = strip_debug_data(full)
    assert sections(slim) == len(CODE)
    assert slim[headers(slim) :] == plain[headers(plain) :]
    assert full.startswith(slim[headers(slim) :], headers(slim))
    assert struct.unpack_from("<2I", slim, 0x8C) == (0, 0)  # no symbols
    assert struct.unpack_from("<I", slim, 0x98 + 56)[0] == 3 * SECTION_ALIGNMENT
    assert struct.unpack_from("<I", slim, 0x98 + 64)[0] == 0  # the checksum is cleared


def test_strip_keeps_the_marker_of_wine_builtins() -> None:
    assert strip_debug_data(program({**CODE, **DEBUGGING}))[0x40:].startswith(MARK)


def test_stripped_file_is_unchanged() -> None:
    slim = strip_debug_data(program({**CODE, **DEBUGGING}))
    assert strip_debug_data(slim) == slim


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
def test_file_that_cannot_be_stripped_safely_is_unchanged(data: bytes) -> None:
    assert strip_debug_data(data) == data


@settings(max_examples=1000)
@given(st.binary(max_size=64), st.integers(0, 0x400))
def test_damaged_file_raises_no_error(noise: bytes, place: int) -> None:
    whole = bytearray(program({**CODE, **DEBUGGING}))
    whole[place : place + len(noise)] = noise
    assert len(strip_debug_data(bytes(whole))) <= len(whole)


@pytest.mark.parametrize("machine", PeMachine)
def test_machine_of_a_program(machine: PeMachine, tmp_path: Path) -> None:
    file = tmp_path / "program.exe"
    file.write_bytes(program(machine=machine))
    assert pe_machine(file) == machine


def test_file_that_is_not_a_program_has_no_machine(tmp_path: Path) -> None:
    file = tmp_path / "script.bat"
    file.write_text("@echo off\n")
    assert pe_machine(file) is None

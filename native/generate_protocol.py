"""Generate the constants and the documentation of the agent protocol from agent_protocol.toml.

`make protocol` writes the outputs, which are committed: the build needs neither this nor the table.
Encoding and decoding is written by hand; only what both sides have to agree on is generated.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
TABLE = "native/agent_protocol.toml"
HEADER = Path("native/common/agent_protocol.h")
MODULE = Path("src/winpod/compute/agent/protocol.py")
DOCUMENT = Path("docs/agent-protocol.md")

_WIDTH = 100
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
_FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}

Table = dict[str, Any]


def generate(target: Path) -> list[Path]:
    """Write all outputs below a directory, and return their relative paths."""
    table = tomllib.loads((REPOSITORY / TABLE).read_text())
    _check(table)
    outputs = {HEADER: _header(table), MODULE: _module(table), DOCUMENT: _document(table)}
    for path, lines in outputs.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text("\n".join(lines) + "\n")
    return list(outputs)


def _check(table: Table) -> None:
    unique = (("frame", "number"), ("frame", "name"), ("guest_command", "word"))
    for kind, key in unique:
        values = [row[key] for row in table[kind]]
        if len(set(values)) != len(values):
            raise ValueError(f"{TABLE}: {key} of {kind} is not unique.")
    known = {*_SIZES, *(row["name"] for row in (*table["type"], *table["record"]))}
    for row in (*table["record"], *table["frame"]):
        used = {kind.removesuffix("...") for kind, _ in row.get("fields", row.get("payload", ()))}
        if used - known:
            raise ValueError(f"{TABLE}: {row['name']} has the unknown types {used - known}.")


def _header(table: Table) -> Iterator[str]:
    yield f"/* Generated from {TABLE} by `make protocol`."
    yield " *"
    for text in (table["overview"], table["flow_control"], table["guest"]["overview"]):
        yield from _wrap(text, " * ")
        yield " *"
    yield " * Payloads:"
    for row in table["type"]:
        yield from _wrap(f"{row['name']}: {row['doc']}.", " *   ")
    for row in table["record"]:
        yield from _wrap(f"{row['name']}: {_fields(row['fields'])} ({row['doc']}).", " *   ")
    yield from (" */", "", "#ifndef WINPOD_AGENT_PROTOCOL_H", "#define WINPOD_AGENT_PROTOCOL_H", "")
    for row in table["record"]:
        yield f"#define {row['name'].upper()}_SIZE {_fixed_size(row['fields'])}"
    yield ""
    for row in table["limit"]:
        value = f"({_shifted(row['value'], 'u')})" if row["value"] % 1024 == 0 else row["value"]
        yield f"#define {row['name']} {value} /* {row['doc']} */"
    yield from _c_enum("frame_type", "FRAME", _frame_members(table))
    for row in table["enum"]:
        name = _snake(row["name"])
        yield from _c_enum(name, name.upper(), row["members"])
    yield from ("", "/* X(name, word, least number of arguments, greatest) */")
    yield "#define GUEST_COMMANDS(X) \\"
    commands = table["guest_command"]
    for row in commands:
        least, greatest = _argument_counts(row.get("arguments", ""))
        end = " \\" if row is not commands[-1] else ""
        yield f'    X({row["name"].lower()}, "{row["word"]}", {least}, {greatest}){end}'
    yield from ("", "#endif")


def _c_enum(name: str, prefix: str, members: Iterable[tuple[str, int, str]]) -> Iterator[str]:
    yield from ("", f"enum {name} {{")
    for member, value, doc in members:
        yield from _wrap(f"/* {doc} */", "    ", "     * ")
        yield f"    {prefix}_{member} = {value},"
    yield "};"


def _module(table: Table) -> Iterator[str]:
    yield f'"""Constants of the agent protocol. Generated from {TABLE} by `make protocol`."""'
    yield from ("", "from __future__ import annotations", "", "import struct")
    yield from ("from enum import IntEnum, IntFlag, StrEnum", "")
    for row in table["limit"]:
        value = _shifted(row["value"]) if row["value"] % 1024 == 0 else row["value"]
        yield f"{row['name']} = {value}"
        yield from _docstring(_sentence(row["doc"]), "")
    yield ""
    for row in table["record"]:
        formats = "".join(_FORMATS[kind] for kind, _ in _fixed(row["fields"]))
        yield f'{row["name"].upper()} = struct.Struct("<{formats}")'
        yield from _docstring(f"{_sentence(row['doc'])} Fields: {_fields(row['fields'])}.", "")
    doc = "Types of frames; docs/agent-protocol.md describes them."
    yield from _python_enum("Frame", "IntEnum", doc, _frame_members(table))
    for row in table["enum"]:
        base = "IntFlag" if row.get("flags") else "IntEnum"
        yield from _python_enum(row["name"], base, row["doc"], row["members"])
    commands = [
        (row["name"], f'"{row["word"]}"', f"{row.get('arguments', '')}: {row['doc']}".lstrip(": "))
        for row in table["guest_command"]
    ]
    yield from _python_enum("GuestCommand", "StrEnum", "Commands of a microVM's wguest.", commands)


def _python_enum(
    name: str, base: str, doc: str, members: Iterable[tuple[str, object, str]]
) -> Iterator[str]:
    yield from ("", "", f"class {name}({base}):", *_docstring(doc, "    "), "")
    for member, value, about in members:
        yield f"    {member} = {value}"
        yield from _docstring(about, "    ")


def _docstring(text: str, indent: str) -> Iterator[str]:
    opening = 'r"""' if "\\" in text else '"""'
    lines = list(_wrap(f'{opening}{text}"""', indent))
    if len(lines) > 1:
        lines[-1:] = [lines[-1].removesuffix('"""'), f'{indent}"""']
    yield from lines


def _document(table: Table) -> Iterator[str]:
    yield from ("# The agent protocol", "")
    yield f"Generated from `{TABLE}` by `make protocol`."
    for text in (table["overview"], table["flow_control"]):
        yield from ("", text.strip())
    yield from ("", "## Frames", "", "| number | name | direction | payload | meaning |")
    yield "|---|---|---|---|---|"
    for row in table["frame"]:
        payload = _fields(row.get("payload", ()))
        yield _row(row["number"], f"`{row['name']}`", row["direction"], payload, row["doc"])
    yield from ("", "### Payloads", "", "| type | content |", "|---|---|")
    for row in table["type"]:
        yield _row(f"`{row['name']}`", row["doc"])
    for row in table["record"]:
        yield _row(f"`{row['name']}`", f"{_fields(row['fields'])} ({row['doc']})")
    for row in table["enum"]:
        yield from ("", f"### {row['name']}", "", row["doc"], "", "| number | name | meaning |")
        yield "|---|---|---|"
        for name, value, doc in row["members"]:
            yield _row(value, f"`{name}`", doc)
    yield from ("", "## Limits", "", "| name | value | of |", "|---|---|---|")
    for row in table["limit"]:
        yield _row(f"`{row['name']}`", f"{row['value']:,}", row["doc"])
    yield from ("", "## The control port of a microVM", "", table["guest"]["overview"].strip())
    yield from ("", table["guest"]["arguments"].strip())
    yield from ("", "| command | arguments | meaning |", "|---|---|---|")
    for row in table["guest_command"]:
        yield _row(f"`{row['word']}`", row.get("arguments", ""), row["doc"])
    for row in table["format"]:
        yield from ("", f"## {row['title']}", "", row["text"].strip())


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |".replace("|  |", "| |")


def _frame_members(table: Table) -> Iterator[tuple[str, int, str]]:
    for row in table["frame"]:
        payload = f" Payload: {_fields(row['payload'])}." if "payload" in row else ""
        yield row["name"], row["number"], f"{row['doc']}{payload}"


def _fields(fields: Iterable[tuple[str, str]]) -> str:
    return ", ".join(kind if kind == name else f"{kind} {name}" for kind, name in fields)


def _fixed(fields: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the fields before the first one of variable size."""
    for kind, name in fields:
        if kind not in _SIZES:
            return
        yield kind, name


def _fixed_size(fields: Iterable[tuple[str, str]]) -> int:
    return sum(_SIZES[kind] for kind, _ in _fixed(fields))


def _argument_counts(arguments: str) -> tuple[int, int | str]:
    words = arguments.split()
    least = sum(not word.startswith("[") for word in words)
    return least, "GUEST_MAX_WORDS" if "..." in arguments else len(words)


def _shifted(value: int, suffix: str = "") -> str:
    return f"{value >> 10}{suffix} << 10"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _wrap(text: str, indent: str, following: str | None = None) -> Iterator[str]:
    following = indent if following is None else following
    for i, paragraph in enumerate(text.strip().split("\n\n")):
        if i:
            yield following.rstrip()
        yield from textwrap.wrap(
            paragraph,
            _WIDTH,
            initial_indent=following if i else indent,
            subsequent_indent=following,
            break_long_words=False,
            break_on_hyphens=False,
        )


if __name__ == "__main__":
    generate(REPOSITORY)

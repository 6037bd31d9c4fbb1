import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.errors import InvalidInput
from winpod.windows.command_line import command_line, join, quote, split


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("", []),
        ("cmd", ["cmd"]),
        ("cmd /c  echo\ta", ["cmd", "/c", "echo", "a"]),
        ('"C:\\Program Files\\x.exe" a', ["C:\\Program Files\\x.exe", "a"]),
        ("C:\\x\\ a", ["C:\\x\\", "a"]),
        (" a", ["", "a"]),
        ('x "a b" c', ["x", "a b", "c"]),
        ('x "ab\\"c" "\\\\" d', ["x", 'ab"c', "\\", "d"]),
        ('x a\\\\\\b d"e f"g h', ["x", "a\\\\\\b", "de fg", "h"]),
        ('x a\\\\\\"b c d', ["x", 'a\\"b', "c", "d"]),
        ('x a\\\\\\\\"b c" d e', ["x", "a\\\\b c", "d", "e"]),
        ('x ""', ["x", ""]),
        ('x """a"""', ["x", '"a"']),
        ('x "a""b c"', ["x", 'a"b', "c"]),
        ('x "open end', ["x", "open end"]),
    ],
)
def test_lines_split_as_windows_splits_them(line: str, arguments: list[str]) -> None:
    assert split(line) == arguments


@pytest.mark.parametrize(
    ("argument", "quoted"),
    [
        ("a", "a"),
        ("", '""'),
        ("a b", '"a b"'),
        ("C:\\x\\", "C:\\x\\"),
        ("C:\\x y\\", '"C:\\x y\\\\"'),
        ('say "hi"', '"say \\"hi\\""'),
        ('\\"', '"\\\\\\""'),
    ],
)
def test_arguments_are_quoted_only_where_they_must_be(argument: str, quoted: str) -> None:
    assert quote(argument) == quoted


words = st.text(alphabet=st.characters(exclude_characters="\0"))
programs = st.text(alphabet=st.characters(exclude_characters='\0"'))
tricky = st.text(alphabet='ab\\" \t\n')


@given(programs, st.lists(words | tricky))
def test_split_reverses_join(program: str, arguments: list[str]) -> None:
    assert split(join([program, *arguments])) == [program, *arguments]


@given(tricky | st.text())
def test_any_line_splits(line: str) -> None:
    assert all(isinstance(argument, str) for argument in split(line))


@pytest.mark.parametrize("arguments", [['a"b'], ["a\0"], ["a", "b\0"]])
def test_unquotable_arguments_are_rejected(arguments: list[str]) -> None:
    with pytest.raises(InvalidInput):
        join(arguments)


@pytest.mark.parametrize(
    ("given_words", "line"),
    [
        ({"entrypoint": ["a b"], "cmd": ["c"]}, '"a b" c'),
        ({"cmd": ["a"]}, "a"),
        ({"entrypoint": ["a"], "cmd": ["c"], "args": ["d e"]}, 'a "d e"'),
        ({"entrypoint": ["a"], "cmd": ["c"], "command": ["b"]}, "b"),
        ({"entrypoint": ["a"], "cmd": ["c"], "command": ["b"], "args": ["d"]}, "b d"),
        ({"entrypoint": ["cmd /S /C echo %X%"], "args_escaped": True}, "cmd /S /C echo %X%"),
        ({"cmd": ["cmd /S /C dir"], "args_escaped": True}, "cmd /S /C dir"),
        (
            {"entrypoint": ["my app"], "cmd": ["c"], "args": ["d e"], "args_escaped": True},
            'my app "d e"',
        ),
        ({"entrypoint": ["my app"], "command": ["b c"], "args_escaped": True}, '"b c"'),
        ({"cmd": ["my app"], "args": ["b c"], "args_escaped": True}, '"b c"'),
    ],
)
def test_container_command_line_matches_containerd(
    given_words: dict[str, object], line: str
) -> None:
    assert command_line(**given_words) == line  # type: ignore[arg-type]


def test_missing_command_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="no command specified"):
        command_line()

"""Command lines. A Windows process gets one string, and splits it into arguments by itself.

`join` and `split` are each other's inverse under the rules of CommandLineToArgvW, which most
programs follow: the program's name ends at its closing quote and knows no backslash escapes; in
the arguments after it a backslash escapes only before a quote.
"""

from collections.abc import Sequence

from winpod.windows.errors import InvalidInput

_BLANKS = " \t"


def quote(argument: str) -> str:
    """One argument, quoted only where it must be."""
    _refuse_nul(argument)
    if argument and not set(argument) & set(_BLANKS + '\n\v"'):
        return argument
    quoted, backslashes = '"', 0
    for character in argument:
        if character == "\\":
            backslashes += 1
            continue
        escapes = backslashes + 1 if character == '"' else 0
        quoted += "\\" * (backslashes + escapes) + character
        backslashes = 0
    return quoted + "\\" * (2 * backslashes) + '"'


def join(arguments: Sequence[str]) -> str:
    """The command line that `split` takes apart into these arguments, the program first."""
    if not arguments:
        return ""
    program, *rest = arguments
    return " ".join([_quote_program(program), *map(quote, rest)])


def split(line: str) -> list[str]:
    """The arguments of a command line, as CommandLineToArgvW gives them."""
    if not line:
        return []
    program, rest = _split_program(line)
    return [program, *_split_arguments(rest)]


def command_line(
    *,
    entrypoint: Sequence[str] = (),
    cmd: Sequence[str] = (),
    args_escaped: bool = False,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
) -> str:
    """The command line of a container: the image's `entrypoint` and `cmd` under the pod's
    `command` and `args`, as containerd lays them over each other.

    With `ArgsEscaped` in the image, its first word is already a command line and is taken as it
    stands, unless the pod replaced it.
    """
    first = command or entrypoint
    from_image = not command and bool(entrypoint or not args)
    rest = args if args or command else cmd
    words = [*first, *rest]
    if not words:
        raise InvalidInput(
            "no command specified", "Set `command` in the pod, or an entrypoint in the image."
        )
    if args_escaped and from_image:
        return " ".join([words[0], *map(quote, words[1:])])
    return join(words)


def _quote_program(program: str) -> str:
    _refuse_nul(program)
    if '"' in program:
        raise InvalidInput(
            f"The program {program} has a quote in its name.", "Windows has no such file names."
        )
    return f'"{program}"' if not program or set(program) & set(_BLANKS) else program


def _refuse_nul(argument: str) -> None:
    if "\0" in argument:
        raise InvalidInput(
            f"The argument {argument!r} has a NUL character, which no command line can carry."
        )


def _split_program(line: str) -> tuple[str, str]:
    if line.startswith('"'):
        program, _, rest = line[1:].partition('"')
        return program, rest
    end = next((i for i, character in enumerate(line) if character in _BLANKS), len(line))
    return line[:end], line[end:]


def _split_arguments(text: str) -> list[str]:
    arguments: list[str] = []
    position = 0
    while True:
        while position < len(text) and text[position] in _BLANKS:
            position += 1
        if position == len(text):
            return arguments
        argument, position = _read_argument(text, position)
        arguments.append(argument)


def _read_argument(text: str, position: int) -> tuple[str, int]:
    """One argument and where it ends. Three quotes in a row are a quoted quote."""
    argument, quotes = "", 0
    while position < len(text) and (quotes or text[position] not in _BLANKS):
        run = _run_of(text, position, "\\")
        position += run
        if position == len(text) or text[position] != '"':
            argument += "\\" * run
            if not run:
                argument += text[position]
                position += 1
            continue
        argument += "\\" * (run // 2)
        if run % 2:
            argument += '"'
        else:
            quotes += 1
        position += 1
        for _ in range(_run_of(text, position, '"')):
            position += 1
            quotes += 1
            if quotes == 3:
                argument += '"'
                quotes = 0
        if quotes == 2:
            quotes = 0
    return argument, position


def _run_of(text: str, position: int, character: str) -> int:
    end = position
    while end < len(text) and text[end] == character:
        end += 1
    return end - position

"""Windows command lines. A Windows process gets one string and splits it into arguments itself.

`join` and `split` are inverse under the rules of CommandLineToArgvW, which most programs follow:
the program's name ends at its closing quote and has no backslash escapes; in the arguments after
it, a backslash is an escape only before a quote.
"""

from collections.abc import Sequence

from winpod.errors import InvalidInput

_BLANKS = " \t"


def quote(argument: str) -> str:
    """Quote one argument if necessary."""
    _reject_nul(argument)
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
    """Join arguments, the program first, into a command line that `split` reverses."""
    if not arguments:
        return ""
    program, *rest = arguments
    return " ".join([_quote_program(program), *map(quote, rest)])


def split(line: str) -> list[str]:
    """Split a command line as CommandLineToArgvW does."""
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
    """Build the command line of a container as containerd does: the pod's `command` and `args`
    override the image's `entrypoint` and `cmd`.

    With `ArgsEscaped`, the image's first argument is already a command line and is used verbatim,
    unless the pod replaces it.
    """
    first = command or entrypoint
    from_image = not command and bool(entrypoint or not args)
    rest = args if args or command else cmd
    arguments = [*first, *rest]
    if not arguments:
        raise InvalidInput(
            "no command specified", "Set `command` in the pod, or an entrypoint in the image."
        )
    if args_escaped and from_image:
        return " ".join([arguments[0], *map(quote, arguments[1:])])
    return join(arguments)


def _quote_program(program: str) -> str:
    _reject_nul(program)
    if '"' in program:
        raise InvalidInput(
            f"The program {program} has a quote in its name.",
            "Windows file names cannot contain quotes.",
        )
    return f'"{program}"' if not program or set(program) & set(_BLANKS) else program


def _reject_nul(argument: str) -> None:
    if "\0" in argument:
        raise InvalidInput(
            f"The argument {argument!r} has a NUL character, which a command line cannot contain."
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
    """Return one argument and the position after it. Three quotes in a row are a literal quote."""
    argument, quotes = "", 0
    while position < len(text) and (quotes or text[position] not in _BLANKS):
        run = _run_length(text, position, "\\")
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
        for _ in range(_run_length(text, position, '"')):
            position += 1
            quotes += 1
            if quotes == 3:
                argument += '"'
                quotes = 0
        if quotes == 2:
            quotes = 0
    return argument, position


def _run_length(text: str, position: int, character: str) -> int:
    end = position
    while end < len(text) and text[end] == character:
        end += 1
    return end - position

"""The list of commands: complete, and cheap to print."""

import subprocess
import sys

import pytest

from winpod.cli.main import COMMANDS, load

HEAVY = ("grpc", "aiohttp", "pyregf", "msgspec", "yaml", "zstandard")


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_matches_command_help(name: str) -> None:
    assert load(name).help.partition("\n")[0] == COMMANDS[name]


def test_help_imports_no_heavy_modules() -> None:
    assert set(HEAVY) & imported("--help") == set()


def test_ps_imports_no_image_modules() -> None:
    assert set(HEAVY) & imported("ps", "--help") <= {"grpc"}


def imported(*arguments: str) -> set[str]:
    script = f"import sys; sys.argv[1:] = {list(arguments)!r}\n"
    script += "from winpod.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    script += "print('\\n'.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())

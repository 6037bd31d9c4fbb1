"""The list of commands: true, and cheap."""

import subprocess
import sys

import pytest

from winpod.cli.lazy import COMMANDS, load

HEAVY = ("grpc", "aiohttp", "pyregf", "lightkube", "yaml", "zstandard")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    assert load(name).help.partition("\n")[0] == COMMANDS[name]


def test_help_waits_for_nothing_that_it_does_not_need() -> None:
    assert set(HEAVY) & imported("--help") == set()


def test_listing_containers_needs_no_registry_and_no_base() -> None:
    assert set(HEAVY) & imported("ps", "--help") <= {"grpc"}


def imported(*arguments: str) -> set[str]:
    script = f"import sys; sys.argv[1:] = {list(arguments)!r}\n"
    script += "from winpod.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    script += "print('\\n'.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())

"""How a client learns the end of a command: the last words on its error stream."""

import json
from typing import Any

JSON_SINCE = 4

Status = dict[str, Any]
SUCCESS: Status = {"metadata": {}, "status": "Success"}


def exited(command: tuple[str, ...], code: int) -> Status:
    """The status of a command that ended; its code as Windows has it, 32 bits without sign."""
    code &= 0xFFFFFFFF
    if code == 0:
        return SUCCESS
    words = " ".join(command)
    return {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code:"
        f" error executing command [{words}], exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failed(sentence: str) -> Status:
    """The status of a command that could not run, or whose end is not known."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {sentence}",
        "reason": "InternalError",
        "details": {"causes": [{"message": sentence}]},
        "code": 500,
    }


def written(status: Status, version: int) -> bytes:
    """As a protocol of this version sends it: before version 4 plain text, and of failures only."""
    if version >= JSON_SINCE:
        return json.dumps(status).encode()
    return b"" if status is SUCCESS else str(status["message"]).encode()

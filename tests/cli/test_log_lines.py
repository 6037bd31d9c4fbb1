"""Logs that programs read: an object a line, whatever is said."""

import json
import logging
import sys

from winpod.cli.log_lines import JsonLines


def line(message: str, *values: object, **more: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "winpod.cluster", "levelname": "WARNING", "msg": message, "args": values, **more}
    )
    text = JsonLines().format(record)
    assert "\n" not in text
    return dict(json.loads(text))


def test_a_line_has_time_level_and_message() -> None:
    told = line("class %s:\n%s", "windows-2019", "stays – for now")
    assert told["message"] == "class windows-2019:\nstays – for now"
    assert (told["level"], told["logger"]) == ("warning", "winpod.cluster")
    assert str(told["time"]).endswith("+00:00")
    assert told.keys() == {"time", "level", "logger", "message"}


def test_what_is_given_beside_the_message_is_a_field() -> None:
    told = line("listening", port=8080, classes={"b"})
    assert (told["port"], told["classes"]) == (8080, "{'b'}")


def test_a_traceback_is_a_field_of_the_same_line() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        told = line("it broke off", exc_info=sys.exc_info())
    assert "ValueError: odd" in str(told["exception"])

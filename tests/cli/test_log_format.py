"""JSON logs: one object per line."""

import json
import logging
import sys

from winpod.cli.log_format import JsonFormatter


def line(message: str, *values: object, **more: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "winpod.operator", "levelname": "WARNING", "msg": message, "args": values, **more}
    )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return dict(json.loads(text))


def test_json_line_has_time_level_and_message() -> None:
    entry = line("class %s:\n%s", "windows-2019", "stays – for now")
    assert entry["message"] == "class windows-2019:\nstays – for now"
    assert (entry["level"], entry["logger"]) == ("warning", "winpod.operator")
    assert str(entry["time"]).endswith("+00:00")
    assert entry.keys() == {"time", "level", "logger", "message"}


def test_extra_values_are_fields() -> None:
    entry = line("listening", port=8080, classes={"b"})
    assert (entry["port"], entry["classes"]) == (8080, "{'b'}")


def test_traceback_is_a_field_of_the_same_line() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        entry = line("it broke off", exc_info=sys.exc_info())
    assert "ValueError: odd" in str(entry["exception"])

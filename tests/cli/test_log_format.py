"""Log output of daemons: levels, and JSON logs with one object per line."""

import json
import logging
import sys

import pytest

from winpod.cli.log_format import JsonFormatter, LogFormat, LogLevel, LogOptions, start_logging
from winpod.cli.main import load


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


def test_options_are_passed_on_to_background_processes() -> None:
    assert LogOptions().arguments == ["--log-format=text"]
    options = LogOptions(LogFormat.JSON, LogLevel.DEBUG)
    assert options.arguments == ["--log-format=json", "--log-level=debug"]


@pytest.mark.parametrize("command", ["node", "operator", "play", "runtime"])
def test_every_daemon_has_logging_options(command: str) -> None:
    options = {option for parameter in load(command).params for option in parameter.opts}
    assert {"--log-format", "--log-level"} <= options


@pytest.mark.parametrize(
    ("options", "configured", "level"),
    [
        (LogOptions(), "warning", logging.WARNING),
        (LogOptions(log_level=LogLevel.DEBUG), "warning", logging.DEBUG),
    ],
)
def test_level_of_the_command_line_overrides_the_configured_level(
    options: LogOptions, configured: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.RootLogger(logging.NOTSET)
    monkeypatch.setattr(logging, "root", root)
    start_logging(options, configured)
    assert root.level == level

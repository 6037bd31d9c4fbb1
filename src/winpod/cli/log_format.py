"""Log output of long-running commands: plain text, or one JSON object per line."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """JSON log formatter. Values passed as `extra` become fields of the object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{
                key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES
            },
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Logging options of every daemon."""

    log_format: Annotated[LogFormat, typer.Option("--log-format", help="Log format.")] = (
        LogFormat.TEXT
    )
    log_level: Annotated[
        LogLevel | None,
        typer.Option("--log-level", help="Log level (default: the configured one, or info)."),
    ] = None

    @property
    def arguments(self) -> list[str]:
        """The command line arguments that pass the options on to a background process."""
        level = [f"--log-level={self.log_level}"] if self.log_level else []
        return [f"--log-format={self.log_format}", *level]


def start_logging(options: LogOptions, default_level: str = LogLevel.INFO) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if options.log_format is LogFormat.JSON else text)
    level = options.log_level or default_level
    logging.basicConfig(level=level.upper(), handlers=[handler])

"""Setup of all tests.

hypothesis gets no deadline, because the machine may be busy. Signals are reset to their defaults:
programs started in the background, as by `nohup`, ignore them, and so do their children. An
exception of a background task that is never retrieved fails the module: it is an error that the
program would lose.
"""

import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

for _signal in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_signal, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


class UnretrievedExceptions(logging.Handler):
    """Collects what asyncio logs when a failed task is deleted without being awaited."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "exception was never retrieved" in record.getMessage():
            test = os.environ.get("PYTEST_CURRENT_TEST", "")
            self.found.append(f"{test}\n{logging.Formatter().format(record)}")


unretrieved = UnretrievedExceptions()
logging.getLogger("asyncio").addHandler(unretrieved)


@pytest.fixture(scope="module", autouse=True)
def no_unretrieved_exceptions() -> Iterator[None]:
    yield
    gc.collect()  # a task and its traceback refer to each other
    found, unretrieved.found = unretrieved.found, []
    if found:
        pytest.fail("\n".join(found), pytrace=False)

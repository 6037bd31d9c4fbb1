"""Reports of a session to the host: JSON lines on a virtio serial port."""

import contextlib
import io
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PORT = Path("/dev/virtio-ports/winpod.session")
STEP_SECONDS = 240.0
_MOST_OUTPUT = 20_000


class Failed(Exception):
    """A step failed."""


class Skipped(Exception):
    """A step does not apply to this machine or this version of winpod."""


class HostRefused(Failed):
    """The host reported an error for a request."""


@dataclass
class Report:
    """Open port, and the transcript of the running step."""

    port: io.FileIO
    transcript: list[str] = field(default_factory=list)
    group: str = ""
    diagnose: Callable[[], None] = lambda: None
    """Adds to the transcript of a failed step."""

    @contextlib.contextmanager
    def step(self, name: str, seconds: float = STEP_SECONDS) -> Iterator[None]:
        """Run a block as a step; an exception fails the step and is not propagated."""
        name = f"{self.group}{name}"
        self.transcript.clear()
        self.send(event="step", name=name, seconds=seconds)
        began = time.monotonic()
        result, message = "pass", ""
        try:
            yield
        except Skipped as skipped:
            result, message = "skip", str(skipped)
        except Failed as failed:
            result, message = "fail", str(failed)
        except Exception:
            result, message = "fail", traceback.format_exc()
        if result == "fail":
            self.diagnose()
        self.send(
            event="result",
            name=name,
            result=result,
            seconds=time.monotonic() - began,
            message=message,
            output="\n".join(self.transcript)[-_MOST_OUTPUT:],
        )

    def crashed(self, message: str) -> None:
        """Report an exception outside of any step."""
        fields = {"result": "fail", "seconds": 0.0, "message": message, "output": ""}
        self.send(event="result", name="session", **fields)

    def log(self, text: str) -> None:
        self.transcript.append(text)

    def note(self, text: str) -> None:
        """Show a fact in the report of the host, whether or not the step passes."""
        self.log(text)
        self.send(event="note", text=text)

    def ask_host(self, request: str, **data: Any) -> dict[str, Any]:
        """Send a request to the host and return its answer."""
        self.send(event="request", request=request, **data)
        line = bytearray()
        while not line.endswith(b"\n"):
            line += self.port.read(1) or b""
        answer = dict(json.loads(line))
        if "error" in answer:
            raise HostRefused(str(answer["error"]))
        return answer

    def send(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[self.port.write(data) or 0 :]


def wait_for(what: str, holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Poll until a condition returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.5)
    return found


def check(condition: object, message: str) -> None:
    if not condition:
        raise Failed(message)

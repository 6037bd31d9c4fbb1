"""Results of a session, printed while it runs, and a table at its end."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

_MARKS = {"pass": "PASS", "fail": "FAIL", "skip": "SKIP"}


@dataclass(frozen=True)
class Result:
    step: str
    result: str
    seconds: float
    message: str = ""
    output: str = ""

    @property
    def line(self) -> str:
        reason = self.message.strip().splitlines()[-1] if self.message.strip() else ""
        return f"{_MARKS[self.result]}  {self.seconds:6.1f} s  {self.step}  {reason}".rstrip()


@dataclass
class Results:
    """Results of one guest, printed as they arrive."""

    guest: str
    transcript: Path
    """File with the output of every step."""
    began: float = field(default_factory=time.monotonic)
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        self.results.append(result)
        self.say(result.line)
        with self.transcript.open("a") as file:
            file.write(f"{result.line}\n{result.output}\n\n")
        if result.result == "fail":
            for line in [*result.message.splitlines(), *result.output.splitlines()]:
                self.say(f"    {line}")

    def say(self, text: str) -> None:
        elapsed = time.monotonic() - self.began
        sys.stdout.write(f"[{self.guest} {elapsed:5.0f} s] {text}\n")
        sys.stdout.flush()

    def finish(self) -> None:
        self.seconds = time.monotonic() - self.began

    @property
    def failed(self) -> bool:
        return not self.results or any(one.result == "fail" for one in self.results)

    def table(self) -> str:
        passed = sum(one.result == "pass" for one in self.results)
        head = f"{self.guest}: {passed} of {len(self.results)} passed in {self.seconds:.0f} s"
        return "\n".join([head, *(f"  {one.line}" for one in self.results)])

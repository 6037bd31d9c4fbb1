"""Session on one guest: boot, follow its reports, power off, all with deadlines."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fresh_machine.machine import Ended, Machine, Stalled
from tests.fresh_machine.results import Result, Results

BOOT_SECONDS = 180.0
POWEROFF_SECONDS = 85.0
"""Less than the 90 seconds that systemd waits for units that do not react to SIGTERM."""
_POWEROFF_LIMIT = 180.0
_BETWEEN_STEPS = 120.0
_GRACE = 30.0
"""Time in addition to a step's own deadline, for the guest to report it."""

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass
class Session:
    """Host side of a session; handlers answer the requests of the guest."""

    machine: Machine
    results: Results
    seconds: float
    handlers: Mapping[str, Handler] = field(default_factory=dict)

    def follow(self) -> None:
        """Record the results until the guest is off or out of time."""
        deadline = time.monotonic() + self.seconds
        step, step_began, limit = "boot", time.monotonic(), BOOT_SECONDS
        while True:
            try:
                report = self.machine.receive(min(limit, deadline - time.monotonic()))
            except (Stalled, Ended) as error:
                took = time.monotonic() - step_began
                tail = f"--- console\n{self.machine.console_tail()}"
                self.results.add(Result(step, "fail", took, str(error), tail))
                return
            match report["event"]:
                case "booted":
                    self.results.add(Result("boot", "pass", time.monotonic() - step_began))
                    limit = _BETWEEN_STEPS
                case "step":
                    step, step_began = report["name"], time.monotonic()
                    limit = report["seconds"] + _GRACE
                case "result":
                    fields = ("name", "result", "seconds", "message", "output")
                    self.results.add(Result(*(report[name] for name in fields)))
                    step, step_began, limit = "between steps", time.monotonic(), _BETWEEN_STEPS
                case "note":
                    self.results.say(f"      {report['text']}")
                case "request":
                    self.machine.send(self._answer(report))
                case "poweroff":
                    self._power_off()
                    return

    def _answer(self, report: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self.handlers[report["request"]](report)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _power_off(self) -> None:
        """Measure the shutdown with a container running."""
        began = time.monotonic()
        name = "systemctl poweroff"
        try:
            while True:
                self.machine.receive(_POWEROFF_LIMIT)
        except (Stalled, Ended) as error:
            took = time.monotonic() - began
            off = isinstance(error, Ended)
            in_time = off and took < POWEROFF_SECONDS
            message = "" if in_time else f"{error}; expected less than {POWEROFF_SECONDS:.0f} s"
            tail = "" if in_time else f"--- console\n{self.machine.console_tail()}"
            result = Result(name, "pass" if in_time else "fail", took, message, tail)
            self.results.add(result)

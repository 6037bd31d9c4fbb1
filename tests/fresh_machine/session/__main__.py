"""`python3 -m tests.fresh_machine.session`: run the session that the payload selects."""

import json
import os
import subprocess
import traceback
from pathlib import Path

from tests.fresh_machine.session import steps
from tests.fresh_machine.session.report import PORT, Report
from tests.fresh_machine.session.shell import VENV, Shell

PAYLOAD = Path("/mnt/payload")


def main() -> None:
    settings = json.loads((PAYLOAD / "settings.json").read_text())
    with PORT.open("r+b", buffering=0) as port:
        report = Report(port)
        report.send(event="booted")
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        path = f"{VENV}/bin:{os.environ['PATH']}"
        shell = Shell(report, {**environment, "PATH": path, "LANG": "C.UTF-8"})
        report.diagnose = shell.log_tail
        try:
            steps.run_session(shell, settings)
        except Exception:
            report.crashed(traceback.format_exc())
        report.send(event="poweroff")
    subprocess.run(["systemctl", "poweroff"], check=True)


if __name__ == "__main__":
    main()

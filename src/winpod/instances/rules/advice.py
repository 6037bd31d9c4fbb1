"""What a person can do about a step that failed."""

from __future__ import annotations

from winpod.instances.rules.desired import Desired
from winpod.instances.rules.steps import Do, Step

AGAIN = "and run the same again: it goes on where it stopped."

_ADVICE = {
    Do.ENABLE_FEATURE: r"See C:\Windows\Logs\DISM\dism.log for what keeps the feature off,",
    Do.REBOOT: "See the console of the machine, restart it by hand,",
    Do.STOP_SERVICE: "See what keeps the service, end it (sc.exe stop {target}, taskkill),",
    Do.REMOVE_SERVICE: "Close programs that show services (mmc), or restart the host,",
    Do.REMOVE_POD: "See what containerd says of it (crictl inspectp {target}), or restart it,",
    Do.REMOVE_NETWORK: "See what still uses the network (Get-HnsEndpoint), or restart the host,",
    Do.MAKE_DIRECTORY: "See whether a file has that name, and whether drive C: has room,",
    Do.REMOVE_DIRECTORY: "See which program holds something in {target}, end it,",
    Do.REMOVE_FILE: "See which program holds {target}, end it,",
    Do.CREATE_SERVICE: "See whether one of that name waits for deletion, restart the host,",
    Do.CHANGE_SERVICE: "See whether a policy or another program sets the service,",
    Do.START_SERVICE: "See its log below C:\\var\\log, or `winpod instance gather`; mend it,",
    Do.PULL_IMAGE: "See that the instance reaches the image's registry,",
}


def advice_for(step: Step, desired: Desired) -> str:
    if step.do is Do.PUT_FILE:
        return f"{_about_file(step.target, desired)} {AGAIN}"
    return f"{_ADVICE[step.do].format(target=step.target)} {AGAIN}"


def _about_file(path: str, desired: Desired) -> str:
    users = desired.file(path).used_by
    holder = f"the service {' or '.join(users)}" if users else "a program"
    return f"See whether {holder} holds the file, and whether drive C: has room,"

"""Steps of a session, in the order in which they run.

Each step runs commands like a user and checks their output and the kernel's view of the containers.
A step leaves nothing running that a later one does not need.
"""

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fresh_machine.session.report import check, wait_for
from tests.fresh_machine.session.shell import (
    CGROUPS,
    ROOT,
    VENV,
    WINPOD,
    Shell,
    cgroup_of,
    check_files,
    processes_with,
    serving_pid,
)

PAYLOAD = Path("/mnt/payload")
LAYOUT = PAYLOAD / "images"
HELLO = f"oci:{LAYOUT}:registry.example/web:1.0"
SERVER = f"oci:{LAYOUT}:registry.example/server:1.0"
TOOLS = f"oci:{LAYOUT}:registry.example/tools:1.0"
MANIFESTS = PAYLOAD / "tests/fresh_machine/session"
CONFIGURATION = Path("/etc/winpod/config.toml")
STATE_FILES = {"runc": "state.json", "crun": "status"}
MIB = 1 << 20
IOPS = "io.microsoft.container.storage.qos.iopsmaximum"
BUILD = "10.0.20348"


@dataclass(frozen=True)
class Step:
    """Step of a session; the short session has the quick ones."""

    name: str
    run: Callable[[Shell, Mapping[str, Any]], None]
    short: bool = False
    seconds: float = 300.0


def run_session(shell: Shell, settings: Mapping[str, Any]) -> None:
    kind = settings["session"]
    if kind == "refusal":
        _run(shell, settings, (*PREPARATION, *REFUSAL))
        return
    _run(shell, settings, (*PREPARATION, *([DOCTOR] if kind == "full" else [])))
    for runtime in settings["oci_runtimes"]:
        shell.report.group = f"{runtime}: "
        with shell.report.step("configure"):
            _remove_all(shell)
            shell.end_runtime()
            _configure(runtime, settings)
        _run(shell, settings, [step for step in CONTAINERS if kind == "full" or step.short])
    shell.report.group = ""
    if kind == "full":
        _run(shell, settings, MACHINE)
    if settings["microvm"]:
        _run(shell, settings, [Step("microVM", microvm, seconds=1800)])


def _run(shell: Shell, settings: Mapping[str, Any], steps: Any) -> None:
    only = re.compile(settings.get("only", ""))
    for step in steps:
        if step in PREPARATION or only.search(step.name):
            with shell.report.step(step.name, step.seconds):
                step.run(shell, settings)


def _configure(oci_runtime: str, settings: Mapping[str, Any]) -> None:
    """Write the configuration; short sessions have no warm pool, which takes the emulated CPU."""
    CONFIGURATION.parent.mkdir(exist_ok=True)
    lines = ["[runtime]", f'oci_runtime = "{oci_runtime}"']
    if settings["session"] == "short":
        lines.append("warm_shells = 0")
    CONFIGURATION.write_text("\n".join(lines) + "\n")


def _remove_all(shell: Shell) -> None:
    if serving_pid() and (names := list(shell.containers())):
        shell.winpod("rm", "-f", *names)


def show_machine(shell: Shell, settings: Mapping[str, Any]) -> None:
    release = os.uname().release
    shell.report.note(f"kernel {release}")
    check(release.startswith(f"{settings['kernel']}."), f"the kernel is {release}")
    init = Path("/proc/1/comm").read_text().strip()
    check(init == "systemd", f"process 1 is {init}")
    listed = ("findmnt", "--noheadings", "--output")
    groups = shell.run(*listed, "TARGET,FSTYPE", "-t", "cgroup,cgroup2")
    check(groups.split() == [str(CGROUPS), "cgroup2"], f"cgroups: {groups}")
    propagation = shell.run(*listed, "PROPAGATION", "/").strip()
    check(propagation == "shared", f"/ is {propagation}")
    session = Path("/proc/self/cgroup").read_text().strip()
    check(".scope" in session, f"the session is not in a scope of logind: {session}")
    for program in ("runc", "crun", "conmon"):
        shell.report.note(shell.run(program, "--version").splitlines()[0])


def install(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Install into a new virtual environment; a short session finds one on its disk."""
    if settings["session"] == "full":
        shell.run("python3", "-m", "venv", str(VENV))
        wheels = str(PAYLOAD / "wheels")
        pip = (str(VENV / "bin/pip"), "install", "--quiet", "--no-index", "--find-links", wheels)
        shell.run(*pip, "winpod[all]", seconds=600)
    shell.report.note(shell.winpod("--version").strip())


def doctor(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    shell.report.note(shell.winpod("doctor"))


def run_hello(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    output = shell.winpod("run", "--rm", HELLO, seconds=280)
    check(f"Microsoft Windows {BUILD}" in output, "the program's output is missing")


def uses_runtime(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Check that the container's state is in the files of the selected OCI runtime."""
    del settings
    chosen = tomllib.loads(CONFIGURATION.read_text())["runtime"]["oci_runtime"]
    group = cgroup_of("3601").name
    files = sorted(path.name for path in (ROOT / "runtime").glob(f"*/{group}/*"))
    shell.report.log(f"state of {group}: {files}")
    check(STATE_FILES[chosen] in files, f"{chosen} has no state of the container")


def limits(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    _start(shell, "limited", 3601, "-m", "256m", "--cpus", "1")
    expected = {
        "memory.max": str(256 * MIB),
        "memory.swap.max": "0",
        "cpu.max": "100000 100000",
        "pids.max": "2048",
    }
    check_files(cgroup_of("3601"), expected, shell.report)


def exec_(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    output = shell.winpod("exec", "limited", "cmd", "/c", "ver & exit 5", expect=5)
    check(BUILD in output, "ver printed no build")


def logs(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    check("up" in shell.winpod("logs", "limited"), "the log lacks the program's line")


def stats(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    [used] = [one for one in shell.winpod_json("stats", "limited") if one["name"] == "limited"]
    check(0 < used["memoryBytes"] <= 256 * MIB, f"memory is {used['memoryBytes']}")
    check(used["cpuNanoSeconds"] > 0, "no CPU time is counted")


def update(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    shell.winpod("update", "-m", "300m", "--cpus", "2", "limited")
    expected = {"memory.max": str(300 * MIB), "cpu.max": "200000 100000"}
    check_files(cgroup_of("3601"), expected, shell.report)


def daemon_reload(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Check that systemd, which owns the hierarchy, does not change winpod's cgroups."""
    del settings
    group = cgroup_of("3601")
    names = ("memory.max", "cpu.max", "cpu.weight", "pids.max")
    before = {name: (group / name).read_text().strip() for name in names}
    shell.run("systemctl", "daemon-reload")
    time.sleep(3)
    check_files(group, before, shell.report)


def weights(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    _start(shell, "plain", 3602)
    _start(shell, "memory-only", 3603, "-m", "300m")
    found = [(cgroup_of(marker) / "cpu.weight").read_text().strip() for marker in ("3602", "3603")]
    shell.report.log(f"cpu.weight without limits and with -m: {found}")
    check(found[0] == found[1], f"the weights differ: {found}")
    shell.winpod("rm", "-f", "plain", "memory-only")


def disk_rate(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    _start(shell, "slow-disk", 3604, "--annotation", f"{IOPS}=100")
    text = (cgroup_of("3604") / "io.max").read_text()
    shell.report.log(f"io.max: {text}")
    check("riops=100 wiops=100" in text, f"io.max is {text!r}")
    shell.winpod("rm", "-f", "slow-disk")


def volumes(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    home = Path("/root/volumes")
    for folder in ("data", "fixed"):
        (home / folder).mkdir(parents=True, exist_ok=True)
        (home / folder / "in.txt").write_text(f"from {folder}\r\n")
        (home / folder / "out.txt").unlink(missing_ok=True)
    (home / "one.txt").write_text("from one file\r\n")
    line = (
        "type C:\\data\\in.txt & type C:\\app\\one.txt & type C:\\fixed\\in.txt"
        " & echo written>C:\\data\\out.txt & echo changed>>C:\\app\\one.txt"
        " & echo refused>C:\\fixed\\out.txt"
    )
    output = shell.winpod(
        *("run", "--rm", "-v", f"{home}/data:C:\\data", "-v", f"{home}/one.txt:C:\\app\\one.txt"),
        *("-v", f"{home}/fixed:C:\\fixed:ro", HELLO, "cmd", "/c", line),
        expect=None,
    )
    for text in ("from data", "from one file", "from fixed"):
        check(text in output, f"the container did not read {text!r}")
    written = home / "data/out.txt"
    check(written.exists() and "written" in written.read_text(), "the directory was not written")
    check("changed" in (home / "one.txt").read_text(), "the file was not written")
    check(not (home / "fixed/out.txt").exists(), "a read-only directory was written")
    check("Access denied" in output, "a write to a read-only directory was not refused")


def port(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    shell.winpod("run", "-d", "--name", "web", "-p", "8080:80", SERVER)
    answer = _curl(shell, "http://127.0.0.1:8080/")
    check("Hello from WEB" in answer, f"the server answered {answer!r}")
    shell.winpod("rm", "-f", "web")


def terminal(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    command = [WINPOD, "run", "-it", "--rm", HELLO, "cmd"]
    output = shell.terminal(command, "ver\rexit 9\r", "C:\\>", 200)
    check(f"Microsoft Windows {BUILD}" in output, "ver printed no build")
    check("[exit 9]" in shell.report.transcript[-1], "the exit code is not 9")


def out_of_memory(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    command = ("run", "--name", "eater", "-m", "200m", TOOLS, "C:\\hostile.exe", "memory")
    shell.winpod(*command, expect=None, seconds=280)
    [inspected] = json.loads(shell.winpod("inspect", "eater"))
    reason = inspected["status"]["reason"]
    check(reason == "OOMKilled", f"the reason is {reason!r}")
    shell.winpod("rm", "eater")


def stop_and_remove(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    shell.winpod("stop", "-t", "2", "limited")
    state = shell.containers()["limited"]["state"]
    check(state == "exited", f"the container is {state}")
    check(not processes_with("3601"), "a process of the container still runs")
    shell.winpod("rm", "limited")
    check("limited" not in shell.containers(), "the container is still listed")


def transient_unit(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Check that a runtime started by a command of a unit, and its containers, outlive the unit."""
    shell.end_runtime()
    shell.run(
        *("systemd-run", "--wait", "--pipe", "--collect", "--quiet"),
        *(WINPOD, "run", "-d", "--name", "from-unit", HELLO, *_waiting(3605)),
        seconds=280,
    )
    check(processes_with("3605"), "the container ended with the unit that started it")
    check(BUILD in shell.winpod("exec", "from-unit", "cmd", "/c", "ver"), "exec failed")
    if settings["session"] == "full":
        check(shell.is_running("from-unit"), "ps does not list the container as running")
        shell.winpod("rm", "-f", "from-unit")


def runtime_unit(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Run `winpod runtime` as a service: its containers outlive a stop, the next one finds them."""
    del settings
    shell.end_runtime()
    unit = "winpod-runtime"
    shell.run(
        *("systemd-run", "--collect", "--quiet", f"--unit={unit}"),
        *(WINPOD, "runtime"),
    )
    wait_for("the runtime serves", serving_pid)
    served_by = serving_pid()
    _start(shell, "of-service", 3606)
    check(serving_pid() == served_by, "the command started a runtime of its own")
    [before, *_] = processes_with("3606")
    shell.run("systemctl", "stop", unit)
    time.sleep(2)
    check(before in processes_with("3606"), "the container's process ended with the service")
    check(shell.is_running("of-service"), "the next runtime does not find the container")
    check(serving_pid() != served_by, "the service still runs")
    check(BUILD in shell.winpod("exec", "of-service", "cmd", "/c", "ver"), "exec failed")
    shell.winpod("rm", "-f", "of-service")


def killed_runtime(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    line = "for /l %i in (1,1,3607) do (echo tick %i & ping -n 2 127.0.0.1 >nul)"
    shell.winpod("run", "-d", "--name", "ticking", HELLO, "cmd", "/c", line)
    first = _wait_for_ticks(shell, 1)
    began = shell.containers()["ticking"]["id"]
    shell.end_runtime(9)
    time.sleep(3)
    later = _wait_for_ticks(shell, first + 2)
    shell.report.log(f"ticks before: {first}, after: {later}")
    now = shell.containers()["ticking"]
    check((now["id"], now["state"]) == (began, "running"), f"the container is {now}")
    shell.winpod("rm", "-f", "ticking")


def play(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    shell.winpod("play", "--layout", str(LAYOUT), str(MANIFESTS / "web.yaml"), seconds=400)
    check("Hello from" in _curl(shell, "http://localhost:8090/"), "the Service does not answer")


def service_name(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    answer = shell.winpod("exec", "deploy/web", "--", "web.exe", "get", "web", "8090")
    check("Hello from" in answer, "the Service does not answer by its name in the pod")


def claim(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Check that files written to a claim exist after `down`."""
    del settings
    try:
        shell.winpod("exec", "deploy/web", "--", "cmd", "/c", "echo kept>C:\\data\\kept.txt")
    finally:
        shell.winpod("down", seconds=280)
    kept = list((ROOT / "play/volumes").rglob("kept.txt"))
    check(kept and "kept" in kept[0].read_text(), "the claim's file is gone after down")


def image_volume(shell: Shell, settings: Mapping[str, Any]) -> None:
    del settings
    manifest = str(MANIFESTS / "image-volume.yaml")
    try:
        shell.winpod("play", "--layout", str(LAYOUT), manifest, seconds=400)
        output = shell.winpod("logs", "reader")
        check("Apache License" in output, "the image volume lacks its file")
    finally:
        shell.winpod("down", "--volumes", seconds=280)


def refusal(shell: Shell, settings: Mapping[str, Any]) -> None:
    output = shell.winpod("run", "--rm", HELLO, expect=None)
    check("Traceback" not in output, "a traceback was printed")
    sentence = next((line for line in output.splitlines() if settings["kernel"] in line), "")
    check("kernel" in sentence.lower(), "no sentence names the kernel's version")
    shell.report.note(sentence)
    shell.winpod("doctor", expect=1)


def node(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Join a control plane on the host as a node, and run a pod of its cluster."""
    del settings
    given = shell.report.ask_host("control-plane")
    folder = Path("/root/node")
    folder.mkdir(exist_ok=True)
    for name, text in given["files"].items():
        (folder / name).write_text(text)
    [interface] = [path.parent.name for path in Path("/sys/class/net").glob("*/device")]
    shell.run("ip", "address", "replace", f"{given['address']}/24", "dev", interface)
    shell.run("ip", "link", "set", interface, "up")
    shell.run(
        *("systemd-run", "--collect", "--quiet", "--unit=winpod-node"),
        *(WINPOD, "node", "--kubeconfig", f"{folder}/kubeconfig", "--name", given["node"]),
        *("--build", "2022", "--node-ip", given["address"]),
        *("--tls-cert-file", f"{folder}/tls.crt", "--tls-private-key-file", f"{folder}/tls.key"),
    )
    try:
        answer = shell.report.ask_host("run-pod", image=HELLO, command=list(_waiting(3608)))
        shell.report.log(json.dumps(answer, indent=2))
        check("up" in answer["logs"], f"kubectl logs printed {answer['logs']!r}")
        check(BUILD in answer["exec"], f"kubectl exec printed {answer['exec']!r}")
    finally:
        shell.run("journalctl", "--no-pager", "-n", "60", "-u", "winpod-node", expect=None)
        shell.run("systemctl", "stop", "winpod-node", expect=None)


def microvm(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Run a pod in a microVM, emulated by a guest that is emulated itself."""
    del settings
    shell.environment["WINPOD_ALLOW_EMULATION"] = "1"
    command = ("run", "--rm", "--isolation", "hypervisor", HELLO, "cmd", "/c", "ver")
    check(BUILD in shell.winpod(*command, seconds=1700), "ver printed no build")


def leave_running(shell: Shell, settings: Mapping[str, Any]) -> None:
    """Keep the first container and the played pod running for the power-off of a short session."""
    del settings
    _start(shell, "at-poweroff", 3609)


PREPARATION = (
    Step("stock Debian", show_machine, short=True, seconds=60),
    Step("install", install, short=True, seconds=650),
)
DOCTOR = Step("winpod doctor", doctor)
CONTAINERS = (
    Step("run", run_hello, seconds=400),
    Step("run with limits", limits, short=True, seconds=400),
    Step("OCI runtime", uses_runtime),
    Step("exec", exec_, short=True),
    Step("logs", logs),
    Step("stats", stats),
    Step("update", update),
    Step("systemctl daemon-reload keeps limits", daemon_reload),
    Step("stop and rm", stop_and_remove),
    Step("cpu.weight with -m only", weights),
    Step("I/O limit", disk_rate),
    Step("-v directory, file, read-only", volumes, short=True),
    Step("-p", port),
    Step("-it", terminal),
    Step("out of memory", out_of_memory, seconds=400),
    Step("container outlives the unit that started it", transient_unit, short=True, seconds=400),
    Step("winpod runtime as a service", runtime_unit),
    Step("kill -9 of the runtime", killed_runtime),
    Step("play: Deployment and Service", play, short=True, seconds=600),
    Step("play: name of the Service", service_name),
    Step("play: claim, down", claim, seconds=500),
    Step("play: image volume", image_volume, seconds=600),
)
MACHINE = (
    Step("node of a cluster", node, seconds=900),
    Step("start a container to power off with", leave_running),
)
REFUSAL = (Step("the kernel is too old", refusal),)


def _start(shell: Shell, name: str, marker: int, *options: str) -> None:
    shell.winpod("run", "-d", "--name", name, *options, HELLO, *_waiting(marker), seconds=280)


def _waiting(marker: int) -> tuple[str, ...]:
    """Return a command that prints a line and waits; the marker is in its command line."""
    return ("cmd", "/c", f"echo up & ping -n {marker} 127.0.0.1 >nul")


def _wait_for_ticks(shell: Shell, count: int) -> int:
    def ticks() -> int:
        found = re.findall(r"^tick (\d+)", shell.winpod("logs", "ticking"), re.MULTILINE)
        return int(found[-1]) if found and int(found[-1]) >= count else 0

    return int(wait_for(f"{count} ticks", ticks, 120))


def _curl(shell: Shell, url: str) -> str:
    command = ("curl", "--silent", "--show-error", "--max-time", "20", url)
    return str(wait_for(url, lambda: _answer(shell, command), 90))


def _answer(shell: Shell, command: tuple[str, ...]) -> str:
    output = shell.run(*command, expect=None)
    return output if "Hello" in output else ""

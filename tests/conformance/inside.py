"""Registry, runtime and critest in separate network and PID namespaces.

`python -m tests.conformance.inside WORK CRITEST FOCUS HANDLER`, as started by `python -m
tests.conformance`; with an empty HANDLER, pods use the runtime's default. All remaining processes
end with it. The reports of critest are written to WORK.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conformance.images import write_mirrors
from tests.support.e2e.microvms import link_kit
from tests.support.e2e.windows_container import container
from tests.support.e2e.windows_programs import cache
from tests.support.registries import docker_registry
from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import Unavailable
from winpod.images.base.build_container import ENVIRONMENT, build_container_spec
from winpod.images.base.builder import Base, build_base
from winpod.windows.builds import parse_build

ENDPOINT = "127.0.0.1:10010"
SPDY, WEBSOCKET = "SPDY", "WebSocket"
_STREAMING = "[k8s.io] Streaming"
_OVER_WEBSOCKET = ("-websocket-exec", "-websocket-attach", "-websocket-portforward")
_TIMEOUT = 300.0
_PROCESSES = 256


def main(work: Path, critest: Path, focus: str, handler: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    chosen = [f"-runtime-handler={handler}"] if handler else []
    base = build_base(cache() / "root")
    with docker_registry(work / "registry") as registry:
        write_mirrors(registry, work / "certs.d")
        with _runtime(work, base):
            _run_critest(work, base, critest, SPDY, [f"-ginkgo.focus={focus}", *chosen])
            if re.search(focus, _STREAMING):
                streaming = [f"-ginkgo.focus={re.escape(_STREAMING)}", *_OVER_WEBSOCKET, *chosen]
                _run_critest(work, base, critest, WEBSOCKET, streaming)


@contextmanager
def _runtime(work: Path, base: Base) -> Iterator[None]:
    (work / "root/bases").mkdir(parents=True)
    (work / "root/bases" / base.id).symlink_to(base.path)
    link_kit(work / "root")
    command = [sys.executable, "-m", "winpod", "runtime", "--root", str(work / "root")]
    command += ["--socket", str(work / "winpod.sock"), "--tcp", ENDPOINT]
    environment = {**os.environ, ALLOW: "1", "HOME": str(work)}
    environment["WINPOD_HOSTS_DIR"] = str(work / "certs.d")
    with (work / "runtime.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        asyncio.run(_wait_ready(process, work))
        try:
            yield
        finally:
            asyncio.run(_remove_pods(work))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_TIMEOUT)


async def _wait_ready(process: subprocess.Popen[bytes], work: Path) -> None:
    client = CriClient(f"unix:{work}/winpod.sock")
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            await client.call("Version", api.VersionRequest())
            break
        except Unavailable as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (work / "runtime.log").read_text()
                raise SystemExit(f"the runtime did not start: {error}\n{log}") from error
            await asyncio.sleep(0.1)
    await client.close()


async def _remove_pods(work: Path) -> None:
    """Remove the pods of failed specs."""
    client = CriClient(f"unix:{work}/winpod.sock")
    listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    for item in listed.items:
        request = api.RemovePodSandboxRequest(pod_sandbox_id=item.id)
        await client.call("RemovePodSandbox", request)
    await client.close()


def _run_critest(
    work: Path, base: Base, critest: Path, name: str, arguments: Sequence[str]
) -> None:
    r"""Run critest; its temporary files are in `C:\PATH` for it, and in `/PATH` for the runtime."""
    shared = work / "shared"
    shared.mkdir(exist_ok=True)
    folder = work / f"critest-{name}"
    windows_path = "C:" + str(shared).replace("/", "\\")
    command = ["C:\\critest.exe", "-runtime-endpoint", f"tcp://{ENDPOINT}"]
    command += ["-ginkgo.no-color", "-ginkgo.seed=1", "-ginkgo.timeout=2h"]
    command += [f"-ginkgo.json-report={windows_path}\\{name}.json", *arguments]
    with container(base, parse_build("2022"), [], folder):
        drive = folder / "prefix/drive_c"
        shutil.copy(critest, drive / "critest.exe")
        (drive / "run.cmd").write_text(f"@set TMP={windows_path}\r\n@{_quoted(command)}\r\n")
        (drive / str(shared)[1:]).mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(_spec(base, folder, shared)))
        run = ["runc", "--root", str(folder / "state"), "run", "--bundle", str(folder)]
        with (work / f"critest-{name}.log").open("wb") as log:
            subprocess.run(
                [*run, f"winpod-{folder.name}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            )


def _quoted(command: Sequence[str]) -> str:
    return " ".join(f'"{word}"' for word in command)


def _spec(base: Base, folder: Path, shared: Path) -> dict[str, Any]:
    """Return the spec of a Wine container that shares the network of the runtime."""
    command = ["wine64", "cmd", "/c", "C:\\run.cmd"]
    name = f"winpod-{folder.name}"
    spec = build_container_spec(base.rootfs, folder / "prefix", command, name, ENVIRONMENT)
    linux = spec["linux"]
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
    linux["resources"]["pids"]["limit"] = _PROCESSES
    bound = {"type": "bind", "source": str(shared), "options": ["bind", "rw"]}
    spec["mounts"].append({"destination": f"/prefix/drive_c{shared}", **bound})
    return spec


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])

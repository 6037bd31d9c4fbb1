"""`make fresh-machine`: boot Debian guests, install winpod in them and run a user's session.

    python -m tests.fresh_machine [--kernel 6.1] [--short] [--only REGEX] [--keep]

Exits with 1 if a step fails on any guest.

No session runs a container in a microVM: it would be emulated by a guest that is emulated itself.
With --microvm, winpod gave up on booting one after 441 seconds (two cores, shared with others).
"""

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.controlplane.build import binaries
from tests.fresh_machine.cluster import Cluster
from tests.fresh_machine.guests import DEFAULT_KERNELS, RELEASES, Guest, Release, build_guest
from tests.fresh_machine.machine import Machine
from tests.fresh_machine.payload import (
    build_root_disk,
    build_wheel,
    install_winpod,
    make_payload,
    pack_images,
    prepare_guest,
)
from tests.fresh_machine.results import Results
from tests.fresh_machine.run import Handler, Session
from tests.support.e2e.windows_programs import cache
from winpod.compute.hypervisor.assets import build_assets

OCI_RUNTIMES = ("runc", "crun")
SHORT_SECONDS = 1800.0
FULL_SECONDS = 5400.0


def main() -> int:
    options = _arguments()
    if os.geteuid() != 0:
        sys.exit("Building guests and mounting needs root.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="fresh-machine-", dir="/var/tmp"))
    try:
        wheel, images = build_wheel(work / "wheel"), work / "images"
        pack_images(images)
        build_assets(cache() / "root")
        build_root_disk()
        for kernel in options.kernel:
            _prepare(RELEASES[kernel], options)
        print(f"prepared in {time.monotonic() - began:.0f} s", flush=True)
        results = _run_all(options, work, wheel)
    finally:
        if options.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print("\n" + "\n\n".join(one.table() for one in results))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(f"\n{time.monotonic() - began:.0f} s in all, {cpu:.0f} s of CPU time")
    return 1 if any(one.failed for one in results) else 0


def _run_all(options: argparse.Namespace, work: Path, wheel: Path) -> list[Results]:
    with ThreadPoolExecutor(options.parallel) as pool:
        sessions = [
            pool.submit(_run, RELEASES[kernel], options, work, wheel) for kernel in options.kernel
        ]
        try:
            return [session.result() for session in sessions]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for machine in list(Machine.running):
                machine.kill()
            raise


def _run(release: Release, options: argparse.Namespace, work: Path, wheel: Path) -> Results:
    folder = work / release.kernel
    folder.mkdir()
    kind = _kind(release, options)
    settings: dict[str, Any] = {
        "session": kind,
        "kernel": release.kernel,
        "only": options.only,
        "microvm": options.microvm,
        "oci_runtimes": options.oci_runtime or (OCI_RUNTIMES if kind == "full" else ("runc",)),
    }
    make_payload(folder / "payload", release, wheel, work / "images", settings)
    results = Results(release.name, folder / "transcript.log")
    disks = (folder / "payload", build_root_disk())
    with ExitStack() as stack:
        handlers: Mapping[str, Handler] = {}
        machine_options: dict[str, Any] = {}
        if kind == "full":
            cluster = stack.enter_context(Cluster(folder / "cluster"))
            handlers, machine_options = cluster.handlers, cluster.machine_options
        kit, guest = build_assets(cache() / "root"), _guest(release, kind, wheel, folder / "guest")
        machine = stack.enter_context(Machine(kit, guest, disks, folder, **machine_options))
        Session(machine, results, _seconds(kind), handlers).follow()
    results.finish()
    return results


def _prepare(release: Release, options: argparse.Namespace) -> None:
    """Build the cached files first, so that their time does not count for a session."""
    if _kind(release, options) == "full":
        build_guest(release)
        binaries(print)
    else:
        prepare_guest(release)


def _guest(release: Release, kind: str, wheel: Path, folder: Path) -> Guest:
    """Return the guest: a full session installs winpod itself, others have it preinstalled."""
    if kind == "full":
        return build_guest(release)
    return install_winpod(prepare_guest(release), wheel, folder)


def _kind(release: Release, options: argparse.Namespace) -> str:
    if not release.is_supported:
        return "refusal"
    return "short" if options.short else "full"


def _seconds(kind: str) -> float:
    return FULL_SECONDS if kind == "full" else SHORT_SECONDS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fresh_machine")
    parser.add_argument(
        "--kernel", action="append", choices=RELEASES, help="run only with this kernel"
    )
    parser.add_argument("--short", action="store_true", help="run the short session")
    parser.add_argument("--only", default="", metavar="REGEX", help="run only matching steps")
    parser.add_argument("--oci-runtime", action="append", help="use only this OCI runtime")
    parser.add_argument("--microvm", action="store_true", help="also run a container in a microVM")
    parser.add_argument("--parallel", type=int, default=1, help="number of guests in parallel")
    parser.add_argument("--keep", action="store_true", help="keep consoles and transcripts")
    options = parser.parse_args()
    options.kernel = options.kernel or DEFAULT_KERNELS
    return options


if __name__ == "__main__":
    sys.exit(main())

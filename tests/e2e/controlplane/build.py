"""Builds a Kubernetes control plane and etcd from the Go module proxy, once per pinned version.

The binaries lie in a cache outside the repository, in a directory named by a hash of everything
that decides them, so a changed pin never meets an old binary. A build goes to a temporary
directory that is renamed when complete: a directory that exists is whole.
`python -m tests.e2e.controlplane` builds what is absent and prints the directory.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parent
MODULE_FILES = ("go.mod", "go.sum", "etcd/main.go")
PACKAGES = {
    "etcd": "./etcd",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}

Say = Callable[[str], None]


class BuildFailed(Exception):
    """The control plane could not be built; the message says what to do."""


def binaries(say: Say = print) -> Path:
    """The directory that holds every binary of PACKAGES, built first if it is absent."""
    go = _go()
    directory = _cache() / f"controlplane-{_fingerprint(go)}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            _build_whole(go, directory, say)
    return directory


def kubernetes_version() -> str:
    """The pinned version of Kubernetes, such as v1.36.4."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text(), re.M)
    if match is None:
        raise BuildFailed(f"{SOURCE / 'go.mod'} does not require k8s.io/kubernetes")
    return match[1]


def _build_whole(go: str, directory: Path, say: Say) -> None:
    began = time.monotonic()
    say(f"building Kubernetes {kubernetes_version()} and etcd into {directory} (some minutes)")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, package in PACKAGES.items():
            _build_one(go, package, unfinished / name, say)
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    say(f"built all in {time.monotonic() - began:.0f} s")


def _build_one(go: str, package: str, output: Path, say: Say) -> None:
    say(f"  {output.name} ...")
    began = time.monotonic()
    command = ["nice", "-n", "10", go, "build", "-p", "2", "-trimpath", "-buildvcs=false"]
    command += ["-ldflags", _linker_flags(kubernetes_version()), "-o", str(output), package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOMAXPROCS": "2"}
    done = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildFailed(f"go build {package} failed:\n{done.stderr[-4000:]}")
    say(f"  {output.name}: {time.monotonic() - began:.0f} s")


def _linker_flags(version: str) -> str:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    settings = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()]
    return " ".join(["-s", "-w", *settings])


def _fingerprint(go: str) -> str:
    digest = hashlib.sha256()
    for name in MODULE_FILES:
        digest.update((SOURCE / name).read_bytes())
    version = subprocess.run([go, "version"], cwd=SOURCE, check=True, capture_output=True)
    digest.update(version.stdout)
    return digest.hexdigest()[:16]


def _cache() -> Path:
    chosen = os.environ.get("WINPOD_BUILD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "winpod-build"


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise BuildFailed(
            "Go is needed to build the control plane and was not found: unpack a release of"
            " Go 1.26 or newer from https://go.dev/dl into /usr/local, or put go on PATH"
        )
    return go

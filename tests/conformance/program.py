"""critest.exe: the Windows build of the cri-tools suite, from the pinned module.

One spec pulls an image by a digest that is hard-coded in the source. It is built from a copy of the
source with the digest of the local image; nothing else is changed.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.e2e.windows_programs import once

MODULE = Path(__file__).parent / "critest"
PACKAGE = "sigs.k8s.io/cri-tools"
DIGEST_NAME = "win-test-image-digest"
_DIGEST = re.compile(DIGEST_NAME + r"@sha256:[0-9a-f]{64}")


class BuildFailed(Exception):
    """critest could not be built; the message has the reason."""


def version() -> str:
    found = re.search(rf"{PACKAGE} (v\S+)", (MODULE / "go.mod").read_text())
    if found is None:
        raise BuildFailed(f"{MODULE / 'go.mod'} does not pin {PACKAGE}")
    return found[1]


def critest(digest: str) -> Path:
    """Return critest with this image digest, building it on first use."""
    pinned = [(MODULE / name).read_text() for name in ("go.mod", "go.sum")]
    decides = "\n".join([*pinned, _go("version").strip(), digest])
    return once("critest.exe", decides, lambda to: _build(digest, to))


def _build(digest: str, target: Path) -> None:
    print("building critest.exe (takes some minutes on first use)", flush=True)
    downloaded = json.loads(_go("mod", "download", "-json", PACKAGE))["Dir"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "cri-tools"
        shutil.copytree(downloaded, source, copy_function=shutil.copyfile)
        _replace_digest(source / "pkg/validate/consts.go", digest)
        words = ["test", "-c", "-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"]
        _go(*words, "-o", str(target), "./cmd/critest", source=source)


def _replace_digest(file: Path, digest: str) -> None:
    text, replaced = _DIGEST.subn(f"{DIGEST_NAME}@{digest}", file.read_text())
    if replaced != 1:
        raise BuildFailed(f"{file.name} names {replaced} images by digest, expected 1")
    file.write_text(text)


def _go(*words: str, source: Path = MODULE) -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise BuildFailed("Go is needed to build critest, and was not found: put go on PATH")
    environment = {
        **os.environ,
        "GOOS": "windows",
        "GOARCH": "amd64",
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
    }
    done = subprocess.run(
        ["nice", go, *words], cwd=source, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise BuildFailed(f"go {' '.join(words)} failed:\n{done.stderr[-4000:]}")
    return done.stdout

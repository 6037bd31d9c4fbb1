"""`make conformance`: downloads and builds, then runs critest without access to the network.

    python -m tests.conformance [--write] [--focus REGEX] [--keep] [--hypervisor] [--smoke]

Exits with 1 if a spec fails that is not a known exception, an exception passes, or a spec is
missing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.images import push_images
from tests.conformance.inside import SPDY, WEBSOCKET
from tests.conformance.program import critest, version
from tests.conformance.results import SPECS, Spec, read_report, summary, table
from tests.support.e2e.windows_programs import cache
from tests.support.registries import docker_registry
from winpod.compute.hypervisor.assets import build_assets
from winpod.images.base.build_container import with_parent_death_signal
from winpod.images.base.builder import build_base
from winpod.windows.handlers import HYPERVISOR_HANDLER

DOCUMENT = Path(__file__).parents[2] / "docs/conformance.md"
BEGIN, END = "<!-- written by python -m tests.conformance --write -->\n", "<!-- end -->\n"
SMOKE = (
    "(execSync|container with volume|container with log|DNS config|set hostname|portforward"
    r"|tty=true and stdin=true|stopping PodSandbox) \[Conformance"
)
SMOKE_SPECS: Mapping[str, int] = {SPDY: 8}


def main() -> int:
    options = _arguments()
    started = time.monotonic()
    build_base(cache() / "root")
    if options.hypervisor:
        build_assets(cache() / "root")
    work = Path(tempfile.mkdtemp(prefix="winpod-conformance-"))
    try:
        with docker_registry(work / "registry") as registry:
            digest = push_images(registry, work / "content")
        program = critest(digest)
        print(f"prepared in {time.monotonic() - started:.0f} s; running the specs", flush=True)
        reports = _run(
            work, program, options.focus, HYPERVISOR_HANDLER.name if options.hypervisor else ""
        )
    finally:
        if options.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    text = _text(reports, ", each pod in a microVM" if options.hypervisor else "")
    print(text)
    if options.write:
        _write(text)
    problems = _problems(reports, _expected(options))
    print("\n".join(problems) or f"as expected, in {time.monotonic() - started:.0f} s")
    return 1 if problems else 0


def _run(work: Path, program: Path, focus: str, handler: str) -> Mapping[str, Sequence[Spec]]:
    inside = [sys.executable, "-m", "tests.conformance.inside", str(work), str(program)]
    command = ["unshare", "--net", "--", *inside, focus, handler]
    subprocess.run(with_parent_death_signal(command), check=True)
    files = {name: work / "shared" / f"{name}.json" for name in (SPDY, WEBSOCKET)}
    return {name: read_report(file) for name, file in files.items() if file.exists()}


def _text(reports: Mapping[str, Sequence[Spec]], where: str) -> str:
    lines = [f"critest {version()}, the Windows build, under Wine 10.", ""]
    for name, specs in reports.items():
        lines += [f"### {name}{where}: {summary(specs)}", "", table(specs)]
    return "\n".join(lines)


def _write(text: str) -> None:
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def _expected(options: argparse.Namespace) -> Mapping[str, int]:
    """Return the expected number of specs by report; unknown with a custom focus."""
    if options.smoke:
        return SMOKE_SPECS
    return {} if options.focus else SPECS


def _problems(reports: Mapping[str, Sequence[Spec]], expected: Mapping[str, int]) -> list[str]:
    problems = [
        f"{name}: {spec.name}: {spec.state} {spec.message}"
        for name, specs in reports.items()
        for spec in specs
        if not spec.is_as_expected
    ]
    for name, count in expected.items():
        found = len(reports.get(name, ()))
        if found != count:
            problems.append(f"{name}: {found} specs ran, expected {count}")
    return problems


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.conformance")
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    parser.add_argument("--focus", default="", metavar="REGEX", help="run only matching specs")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    parser.add_argument("--hypervisor", action="store_true", help="run every pod in a microVM")
    parser.add_argument("--smoke", action="store_true", help="run a few specs of each kind")
    options = parser.parse_args()
    if options.smoke:
        options.focus = SMOKE
    return options


if __name__ == "__main__":
    sys.exit(main())

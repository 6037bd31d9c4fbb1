"""CoreDNS for tests, built from the Go module proxy, with the plugins that a cluster needs."""

from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule, Say

SOURCE = Path(__file__).parent


def coredns(say: Say = print) -> Path:
    """Return the program, building it first if absent."""
    module = GoModule(
        name="coredns",
        title="CoreDNS",
        source=SOURCE,
        files=("go.mod", "go.sum", "main.go"),
        packages={"coredns": "."},
    )
    return go_build.binaries(module, say) / "coredns"

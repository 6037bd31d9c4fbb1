"""Windows program with HTTP, TCP and gRPC health endpoints; see main.go."""

from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule

MODULE = GoModule(
    name="health-server",
    title="the server of the probes' tests",
    source=Path(__file__).parent,
    files=("go.mod", "go.sum", "main.go"),
    packages={"health.exe": "."},
    system="windows",
)


def health_server() -> Path:
    return go_build.binaries(MODULE) / "health.exe"

"""Programs of a Windows host: real ones from the Go module proxy, and stand-ins in C."""

from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import Edit, GoModule, Say
from tests.support.e2e.windows_programs import c_program

HERE = Path(__file__).parent
STAND_INS = HERE / "stand_ins"
SERVICES_IN_ANY_SESSION = Edit(
    "golang.org/x/sys/windows/svc/security.go", "parentProcess.SessionID == 0 && ", ""
)
"""Check the parent's name only: Windows starts services in session 0, Wine in session 1."""

FIRST_INSTANCE_IS_NOBODYS = Edit(
    "github.com/Microsoft/go-winio/pipe.go",
    "\tl := &win32PipeListener{",
    "\tif client, err := DialPipe(path, nil); err == nil {\n\t\tclient.Close()\n\t}\n"
    "\tl := &win32PipeListener{",
)
"""Connect to the first instance of a pipe, and disconnect at once.

On Windows, a pipe that is opened for neither reading nor writing accepts no client. Wine accepts
one, which would wait forever.
"""

REAL = GoModule(
    name="windows-host",
    title="containerd.exe, crictl.exe and an SFTP server",
    source=HERE / "go",
    files=("go.mod", "go.sum"),
    packages={
        "containerd.exe": "github.com/containerd/containerd/v2/cmd/containerd",
        "crictl.exe": "sigs.k8s.io/cri-tools/cmd/crictl",
        "sftp-server.exe": "github.com/pkg/sftp/server_standalone",
    },
    system="windows",
    edits=(SERVICES_IN_ANY_SESSION, FIRST_INSTANCE_IS_NOBODYS),
)


def containerd(say: Say = print) -> Path:
    return _real("containerd.exe", say)


def crictl(say: Say = print) -> Path:
    return _real("crictl.exe", say)


def sftp_server(say: Say = print) -> Path:
    return _real("sftp-server.exe", say)


def stand_in(name: str) -> Path:
    """Build a stand-in that behaves as documented, where Wine lacks the program or has a stub."""
    return c_program(name, STAND_INS, ("advapi32", "bcrypt"), options=("-municode",))


def _real(name: str, say: Say) -> Path:
    return go_build.binaries(REAL, say) / name

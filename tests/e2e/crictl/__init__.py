"""The unmodified crictl, connected to a runtime's Unix socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule, Say

MODULE = GoModule(
    name="crictl",
    title="crictl",
    source=Path(__file__).parent,
    files=("go.mod", "go.sum"),
    packages={"crictl": "sigs.k8s.io/cri-tools/cmd/crictl"},
)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


class Crictl:
    """Run crictl; `inside` is the command prefix that enters the network of the runtime."""

    def __init__(
        self, socket: Path, inside: Sequence[str], environment: Mapping[str, str], say: Say = print
    ) -> None:
        config = socket.with_suffix(".yaml")
        config.write_text(f"runtime-endpoint: unix://{socket}\ntimeout: 300\n")
        program = go_build.binaries(MODULE, say) / "crictl"
        self._command = [*inside, str(program), "--config", str(config)]
        self._environment = environment

    async def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run crictl, assert that it succeeds, and return its output."""
        ran = await self.run(*arguments, stdin=stdin)
        assert ran.code == 0, f"crictl {' '.join(arguments)}: {ran.err}{ran.out}"
        return ran.out

    async def run(self, *arguments: str, stdin: bytes = b"") -> Ran:
        async with self.running(*arguments) as process, asyncio.timeout(600):
            out, err = await process.communicate(stdin)
        return Ran(process.returncode or 0, out.decode(), err.decode())

    @asynccontextmanager
    async def running(
        self, *arguments: str, terminal: int | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run crictl with pipes as its streams, or all of them connected to the terminal."""
        stream = asyncio.subprocess.PIPE if terminal is None else terminal
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=stream,
            stdout=stream,
            stderr=stream,
            env=self._environment,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

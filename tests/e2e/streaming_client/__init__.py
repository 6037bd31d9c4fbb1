"""client-go's clients of the streaming protocols, in a small Go program.

`StreamingClient` runs it as a process; it uses SPDY or WebSocket like kubectl and crictl.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule, Say

MODULE = GoModule(
    name="streaming-client",
    title="the client of the streaming tests",
    source=Path(__file__).parent,
    files=("go.mod", "go.sum", "main.go"),
    packages={"streaming-client": "."},
)


@dataclass(frozen=True)
class Outcome:
    """Report of the client when it exits: error message and exit code of the command."""

    error: str
    code: int


@dataclass
class Running:
    """Running client. Its streams are those of the command."""

    process: asyncio.subprocess.Process
    report: Path
    sizes: int
    local_ports: list[int] = field(default_factory=list)

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        assert self.process.stderr is not None
        return self.process.stderr

    def resize(self, width: int, height: int) -> None:
        """Resize the client's terminal; requires one."""
        os.write(self.sizes, f"{width}x{height}\n".encode())

    async def outcome(self) -> Outcome:
        await self.process.wait()
        return Outcome(**json.loads(await asyncio.to_thread(self.report.read_text)))


class StreamingClient:
    def __init__(self, directory: Path, say: Say = print) -> None:
        self._program = go_build.binaries(MODULE, say) / "streaming-client"
        self._directory = directory
        self._count = 0

    @asynccontextmanager
    async def command(self, url: str, *flags: str) -> AsyncIterator[Running]:
        """Run an exec or attach with these flags of main.go."""
        async with self._run([*flags, "command", url]) as running:
            yield running

    @asynccontextmanager
    async def forward(self, url: str, ports: Sequence[int], *flags: str) -> AsyncIterator[Running]:
        """Forward `ports`; the context is entered once the forward is ready."""
        wanted = [f":{port}" for port in ports]
        async with self._run([*flags, "forward", url, *wanted]) as running:
            for _ in ports:
                running.local_ports.append(int(await running.stdout.readline()))
            yield running

    @asynccontextmanager
    async def _run(self, arguments: Sequence[str]) -> AsyncIterator[Running]:
        self._count += 1
        report = self._directory / f"report-{self._count}.json"
        size_reader, sizes = os.pipe()
        process = await asyncio.create_subprocess_exec(
            self._program,
            *("-report", str(report), "-sizes", str(size_reader)),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(size_reader,),
        )
        os.close(size_reader)
        try:
            yield Running(process, report, sizes)
        finally:
            os.close(sizes)
            if process.returncode is None:
                process.kill()
            await process.wait()

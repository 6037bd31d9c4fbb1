"""Stand-in for wagent.exe without Windows: the same frames, with simulated programs.

A command line is one of: `say TEXT`, `cry TEXT` (to stderr), `exit CODE`, `copy` (stdin to stdout,
chunk by chunk), `both` (like copy, but chunks that start with ! go to stderr), `deaf` (reads no
input), `flood BYTES` (as credit allows), `wait` (for a signal, then exits with its kind), `show`
(the decoded start request), `fail CODE`, `nonsense` (violates the protocol), `garble SEED` (random
frames of all kinds), `huge` (announces a frame that is too large), `half` (the agent exits in the
middle of a frame), `die` (the agent exits).

A named pipe is one of: `echo` (can be opened once, echoes its input), `refused`, `garble SEED`.
"""

import os
import random
import struct
import sys

START, INPUT, INPUT_END, SIGNAL, RESIZE, PROCESSES, REGISTRY, PING, PIPE, TAKEN = range(1, 11)
CREDIT, CLOSE = 32, 33
STARTED, OUTPUT, ERRORS, EXIT, FAILED, WINDOW, PROCESS_LIST, DONE, CONNECTED = range(65, 74)
OUTPUT_WINDOW, CHUNK, HEADER = 128 << 10, 32 << 10, 5

programs: dict[int, "SimulatedProgram"] = {}
opened: set[str] = set()
registry_changes: list[int] = []


class SimulatedProgram:
    def __init__(self, session: int, line: str, start: bytes) -> None:
        self.session, self.start = session, start
        self.name, _, self.rest = line.partition(" ")
        self.credit, self.left = OUTPUT_WINDOW, 0
        self.heard: list[int] = []

    def begin(self) -> None:
        if self.name == "fail":
            self.send(FAILED, struct.pack("<I", int(self.rest)) + b"A sentence.")
            return
        self.send(STARTED, struct.pack("<I", 4000 + self.session))
        match self.name:
            case "say" | "cry":
                self.send(OUTPUT if self.name == "say" else ERRORS, self.rest.encode())
                self.exit(0)
            case "show":
                self.send(OUTPUT, self.start)
                self.exit(0)
            case "registry":
                self.exit(registry_changes.count(self.session))
            case "exit":
                self.exit(int(self.rest))
            case "flood":
                self.left = int(self.rest)
                self.flow()
            case "nonsense":
                self.send(200, b"what")
            case "garble":
                self.garble()
            case "half":
                os.write(1, struct.pack("<IBI", 100, OUTPUT, self.session) + b"half")
                os._exit(3)
            case "huge":
                os.write(1, struct.pack("<IBI", 1 << 31, OUTPUT, self.session))
            case "die":
                os._exit(3)

    def open(self) -> None:
        if self.name == "refused":
            self.send(FAILED, struct.pack("<I", 5) + b"Access is denied.")
            return
        self.send(DONE, b"")
        if self.name in opened:
            return
        opened.add(self.name)
        self.send(CONNECTED, b"")
        if self.name == "garble":
            self.garble()

    def garble(self) -> None:
        chosen = random.Random(self.rest)
        kinds = (OUTPUT, OUTPUT, ERRORS, WINDOW, EXIT, FAILED, DONE, CONNECTED, 0, 255)
        for _ in range(40):
            size = chosen.choice((0, 1, 3, 4, 5, 600, CHUNK, CHUNK + 1, 100_000))
            self.send(chosen.choice(kinds), chosen.randbytes(size))

    def flow(self) -> None:
        while self.left and self.credit > HEADER:
            size = min(self.left, self.credit - HEADER, CHUNK)
            self.send(OUTPUT, b"x" * size)
            self.left -= size
            if not self.left:
                self.exit(0)

    def take(self, kind: int, payload: bytes) -> None:
        match kind:
            case 2 if self.name in ("copy", "echo"):
                self.send(OUTPUT, payload)
                self.send(WINDOW, struct.pack("<I", len(payload)))
            case 2 if self.name == "both":
                self.send(ERRORS if payload.startswith(b"!") else OUTPUT, payload)
                self.send(WINDOW, struct.pack("<I", len(payload)))
            case 3 if self.name in ("copy", "both", "echo"):
                self.exit(0)
            case 4 if self.name in ("wait", "deaf"):
                self.send(OUTPUT, f"signal {payload[0]}\n".encode())
                self.exit(payload[0])
            case 5 if self.name == "wait":
                self.send(OUTPUT, "size {} {}\n".format(*struct.unpack("<HH", payload)).encode())
            case 32:
                self.credit += struct.unpack("<I", payload)[0]
                self.flow()

    def exit(self, code: int) -> None:
        self.send(EXIT, struct.pack("<I", code))

    def send(self, kind: int, payload: bytes) -> None:
        self.credit -= HEADER + len(payload)
        send(self.session, kind, payload)


def send(session: int, kind: int, payload: bytes = b"") -> None:
    data = struct.pack("<IBI", len(payload), kind, session) + payload
    while data:
        data = data[os.write(1, data) :]


def read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def main() -> None:
    while True:
        size, kind, session = struct.unpack("<IBI", read(9))
        payload = read(size)
        if kind == START:
            units = struct.unpack_from("<I", payload, 5)[0]
            line = payload[9 : 9 + 2 * units - 2].decode("utf-16-le")
            programs[session] = SimulatedProgram(session, line, payload)
            programs[session].begin()
        elif kind == PIPE:
            programs[session] = SimulatedProgram(
                session, payload[4:-2].decode("utf-16-le"), payload
            )
            programs[session].open()
        elif kind == REGISTRY and payload.startswith(b"\2"):
            send(session, FAILED, struct.pack("<I", 5) + b"Access is denied.")
        elif kind in (PING, REGISTRY):
            registry_changes.extend([session] * (kind == REGISTRY))
            send(session, DONE)
        elif kind == PROCESSES:
            records = b""
            for one in programs:
                name = "pretended.exe".encode("utf-16-le")
                records += struct.pack("<IIIQQQQQI", one, 1, 2, 0, 15, 5, 7, 8, len(name)) + name
            send(session, PROCESS_LIST, records)
        elif kind == CLOSE:
            programs.pop(session, None)
        elif session in programs:
            programs[session].take(kind, payload)


main()

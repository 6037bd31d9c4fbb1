"""The relays of wguest between a virtio port and an agent or a TCP connection, outside of a VM."""

import errno
import os
import random
import signal
import socket
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native.build import COMMON, LINUX, SOURCE, compile_program

from winpod.compute.agent.protocol import LINK_HEADER, Frame

DATA = random.Random(1).randbytes(3_000_000)
BLOCK = 16 << 10
NUMBER = struct.Struct("<I")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("relay") / "guest_relay"
    parts = [SOURCE / f"wguest/{name}.c" for name in ("port_relay", "dial")]
    parts += [COMMON / f"{name}.c" for name in ("agent_process", "io", "queue")]
    options = (*LINUX, "-I", str(SOURCE / "wguest"))
    compile_program([Path(__file__).with_name("guest_relay.c"), *parts], program, options)
    return program


def started(
    program: Path, mode: str, *words: str
) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    port, inside = socket.socketpair()
    port.settimeout(60)
    with inside:
        command = [str(program), mode, str(inside.fileno()), *words]
        return port, subprocess.Popen(command, pass_fds=[inside.fileno()])


def received(port: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = port.recv(size - len(data))
        assert piece
        data += piece
    return data


def test_port_relay_forwards_everything_and_reports_the_end_of_the_agent(program: Path) -> None:
    port, process = started(program, "relay", "cat")
    with port, ThreadPoolExecutor() as threads:
        sending = threads.submit(port.sendall, DATA)
        assert received(port, len(DATA)) == DATA
        sending.result()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert received(port, LINK_HEADER.size) == LINK_HEADER.pack(0, Frame.SILO_EXITED, 0)
    assert process.wait(60) == 0


def test_dial_relays_both_directions_to_their_ends(program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        port, process = started(program, "dial", str(server.getsockname()[1]), "127.0.0.1")
        assert process.wait(60) == 0
        connection, _ = server.accept()
        with port, connection:
            assert received(port, NUMBER.size) == NUMBER.pack(0)
            sending = threads.submit(send_blocks, port)
            echoing = threads.submit(echo, connection)
            answered = []
            while size := NUMBER.unpack(received(port, NUMBER.size))[0]:
                assert size <= BLOCK
                answered.append(received(port, size))
            assert b"".join(answered) == DATA
            sending.result()
            echoing.result()


def send_blocks(port: socket.socket) -> None:
    for start in range(0, len(DATA), BLOCK):
        block = DATA[start : start + BLOCK]
        port.sendall(NUMBER.pack(len(block)) + block)
    port.sendall(NUMBER.pack(0))


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def test_dial_reports_the_errno_of_a_refused_connection(program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    port, process = started(program, "dial", str(number), "127.0.0.1")
    with port:
        assert received(port, NUMBER.size) == NUMBER.pack(errno.ECONNREFUSED)
    assert process.wait(60) == 0

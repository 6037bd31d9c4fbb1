"""Programs of a payload."""

import struct

from winpod.images.pe import PeMachine

GO_BUILD = b"path\tx\nmod\tgithub.com/containerd/containerd/v2\tv2.4.2\th1:abc=\n"


def program(machine: int = PeMachine.AMD64, extra: bytes = b"") -> bytes:
    """Return the smallest file that is recognized as a program for a machine."""
    dos = b"MZ" + bytes(58) + struct.pack("<I", 64)
    return (
        dos + struct.pack("<4sHHIIIHH", b"PE\0\0", machine, 0, 0, 0, 0, 240, 0) + bytes(240) + extra
    )

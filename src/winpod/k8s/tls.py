"""Sockets and certificates of the TLS servers and clients of a cluster."""

from __future__ import annotations

import socket
import ssl
import tempfile

from winpod.errors import Unavailable


def bind_socket(server: str, host: str, port: int) -> socket.socket:
    """Bind the socket of a server; port 0 selects a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Unavailable(
            f"{server} cannot listen on {host} port {port}: {error.strerror}.",
            "Free the port, or choose another one.",
        ) from error


def load_certificate_chain(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Load a certificate and its key. OpenSSL reads them from files only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(chain.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)

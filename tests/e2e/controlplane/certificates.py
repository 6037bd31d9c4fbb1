"""Certificates for the control plane of a test, created with the openssl command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "30"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class OpensslFailed(Exception):
    """The openssl command is missing or failed; the message names the fix."""


@dataclass(frozen=True)
class Certificate:
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority(Certificate):
    """Certificate authority; issued certificates are stored in its directory."""

    def serving(self, name: str, *addresses: str) -> Certificate:
        """Issue a server certificate for names (`DNS:localhost`) and addresses (`IP:::1`)."""
        return self._issue(
            name,
            f"/CN={name}",
            f"subjectAltName={','.join(addresses)}",
            "extendedKeyUsage=serverAuth",
        )

    def client(self, name: str, user: str, *groups: str) -> Certificate:
        """Issue a client certificate: Kubernetes reads the user from CN and the groups from O."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._issue(name, subject, "extendedKeyUsage=clientAuth")

    def _issue(self, name: str, subject: str, *extensions: str) -> Certificate:
        issued = _pair(self.certificate.parent, name)
        signer = ["-CA", str(self.certificate), "-CAkey", str(self.key)]
        _request(issued, subject, "basicConstraints=critical,CA:FALSE", *extensions, signer=signer)
        return issued


def new_authority(directory: Path, name: str) -> Authority:
    pair = _pair(directory, name)
    _request(
        pair,
        f"/CN={name}",
        "basicConstraints=critical,CA:TRUE",
        "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        signer=[],
    )
    return Authority(pair.certificate, pair.key)


def _pair(directory: Path, name: str) -> Certificate:
    return Certificate(directory / f"{name}.crt", directory / f"{name}.key")


def _request(pair: Certificate, subject: str, *extensions: str, signer: list[str]) -> None:
    # Use a separate configuration: the system's adds extensions to every certificate.
    configuration = pair.key.with_suffix(".cnf")
    configuration.write_text("[req]\ndistinguished_name = dn\nstring_mask = utf8only\n[dn]\n")
    command = ["req", "-x509", "-config", str(configuration), "-days", DAYS, *NEW_KEY, *signer]
    command += ["-subj", subject, "-keyout", str(pair.key), "-out", str(pair.certificate)]
    for extension in extensions:
        command += ["-addext", extension]
    _openssl(*command)


def _openssl(*arguments: str) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise OpensslFailed("openssl is needed and was not found: apt-get install openssl")
    done = subprocess.run([openssl, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OpensslFailed(f"openssl {' '.join(arguments)} failed:\n{done.stderr}")

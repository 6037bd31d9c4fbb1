"""Which machine an instance is: its host key, trusted when it is first seen and pinned then.

Keys are kept as OpenSSH writes public keys, without a comment. The command line keeps them in a
file; the operator keeps each in its instance's status.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from winpod.images.home import user_home
from winpod.windows.errors import InvalidInput


class HostKeys(Protocol):
    def known(self, instance: str) -> str | None:
        """The key that was pinned, if one was."""

    def remember(self, instance: str, key: str) -> None:
        """Pin it. Called once, after a first login went well."""


class KeysInMemory:
    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def known(self, instance: str) -> str | None:
        return self._keys.get(instance)

    def remember(self, instance: str, key: str) -> None:
        self._keys[instance] = key


class KeysInFile:
    """Lines of an instance and its key, as OpenSSH's known_hosts has them."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or default_file()

    def known(self, instance: str) -> str | None:
        return self._read().get(instance)

    def remember(self, instance: str, key: str) -> None:
        self._write(self._read() | {instance: key})

    def forget(self, instance: str) -> str | None:
        """So that whoever answers next is trusted."""
        keys = self._read()
        forgotten = keys.pop(instance, None)
        if forgotten:
            self._write(keys)
        return forgotten

    def _read(self) -> dict[str, str]:
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the host keys in {self.file} cannot be read: {error}.",
                "See whose the file is, or move it away to trust all hosts anew.",
            ) from error
        pairs = (line.partition(" ") for line in text.splitlines())
        return {name: key.strip() for name, _, key in pairs if name and key.strip()}

    def _write(self, keys: dict[str, str]) -> None:
        """All at once: a file that is cut off would trust anybody."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.file.parent, prefix=".host_keys", delete=False
            ) as new:
                new.writelines(f"{name} {key}\n" for name, key in sorted(keys.items()))
            Path(new.name).replace(self.file)
        except OSError as error:
            raise InvalidInput(
                f"the host keys in {self.file} cannot be written: {error}.",
                "See that you may write there, and that the disk has room.",
            ) from error


def default_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(base) if Path(base).is_absolute() else user_home() / ".config"
    return home / "winpod" / "host_keys"

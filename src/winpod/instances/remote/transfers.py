r"""Files on their way: how SFTP names their paths, and what is said when one does not arrive."""

from __future__ import annotations

from pathlib import PureWindowsPath

import asyncssh

from winpod.windows.errors import WinpodError


class TransferFailed(WinpodError):
    """A file did not get to the instance, or not from it."""

    code = "ABORTED"

    def __init__(self, instance: str, failure: str, error: asyncssh.SFTPError) -> None:
        why = error.reason.rstrip(".") or "the instance did not say why"
        super().__init__(f"{instance}: {failure}: {why}.", _what_to_do(error))


def to_sftp(path: str) -> str:
    r"""`C:\k\bin` as OpenSSH for Windows names it: `/C:/k/bin`."""
    return f"/{PureWindowsPath(path).as_posix()}"


def _what_to_do(error: asyncssh.SFTPError) -> str:
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return "See that the user is an administrator, and that no program holds the file."
    if isinstance(error, asyncssh.SFTPNoSpaceOnFilesystem | asyncssh.SFTPQuotaExceeded):
        return "Make room on drive C:, and run the same again."
    if isinstance(error, asyncssh.SFTPNoSuchFile):
        return "See that its directory is there."
    return "See that drive C: has room and that no program holds the file."

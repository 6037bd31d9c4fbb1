"""Paths and file names as Windows has them.

Container paths are normalised the way containerd and the kubelet do it before the Host Compute
Service sees them. Names follow the Win32 rules; what they refuse cannot be a file in an image.
"""

import re

from winpod.windows.errors import InvalidInput

MAX_NAME = 255
MAX_PIPE = 256

_PIPE = "\\\\.\\pipe\\"
_UNC = re.compile(r"\\\\[^\\]+\\[^\\]+")
_DRIVE = re.compile(r"[A-Za-z]:")
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_NO_PIPE = re.compile(r"[/\\\x00-\x1f]")
_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9¹²³])", re.IGNORECASE)


def is_pipe(path: str) -> bool:
    return path.lower().startswith(_PIPE)


def pipe_name(path: str) -> str:
    r"""NAME of `\\.\pipe\NAME`, which can also be that of a file."""
    name = path[len(_PIPE) :]
    if name in ("", ".", "..") or _NO_PIPE.search(name) or len(path) > MAX_PIPE:
        raise InvalidInput(
            f'"{path}" is not a named pipe.',
            rf"Write \\.\pipe\NAME, without further slashes and of up to {MAX_PIPE} characters.",
        )
    return name


def container_path(path: str) -> str:
    r"""A path in a container: `/data` is `C:\data`; pipes and shares stay as they are."""
    if not path:
        raise InvalidInput("A container path is empty.", r"Write a path such as C:\data.")
    if path.startswith("\\\\") and (is_pipe(path) or _UNC.match(path)):
        return path
    text = path.replace("/", "\\")
    drive = text[:2] if _DRIVE.match(text) else "C:"
    return f"{drive}\\" + "\\".join(_steps(text.removeprefix(drive)))


def mount_destination(path: str) -> str:
    """Where a mount appears in a container. A whole drive may be a mount, except C:."""
    if _DRIVE.fullmatch(path) and path.upper() != "C:":
        return path
    destination = container_path(path)
    if destination.upper() == "C:\\":
        raise InvalidInput(
            "destination path can not be C drive", r"Mount a directory in it, such as C:\data."
        )
    return destination


def machine_path(path: str) -> str:
    r"""A path of this machine, as a client names it: on Windows, `C:\x` and `Z:\x` are `/x`.

    The kubelet and containerd take `/x` for `C:\x`, and this is the way back; `Z:` is the machine's
    root for whoever runs under Wine. Other drives are no place of this machine.
    """
    if not _DRIVE.match(path):
        return path
    if path[0].upper() not in "CZ":
        raise InvalidInput(
            f"{path} is on a drive that this machine does not have.",
            r"Its own paths are /x, and C:\x or Z:\x for a client on Windows.",
        )
    return "/" + "/".join(_steps(path[2:].replace("/", "\\")))


def name_problem(name: str) -> str:
    """Why Windows has no file of this name, or nothing where it may have one."""
    if not name or name in (".", ".."):
        return "it is no name"
    if found := _FORBIDDEN.search(name):
        return f"it has the character {found.group()!r}"
    if name[-1] in ". ":
        return "it ends in a dot or a space"
    if is_device_name(name):
        return f"{name.partition('.')[0].rstrip().upper()} is a device"
    if len(name.encode("utf-16-le", "surrogatepass")) // 2 > MAX_NAME:
        return f"it is longer than {MAX_NAME} characters"
    return ""


def is_device_name(name: str) -> bool:
    """`NUL`, `com1.txt` and the like, which Windows opens as devices in every directory."""
    return _DEVICE.fullmatch(name.partition(".")[0].rstrip(" ")) is not None


def collision_key(name: str) -> str:
    """Equal for two names that Windows takes for the same file.

    NTFS compares characters one by one in upper case, so characters that grow (`ß`) stay.
    """
    return "".join(u if len(u := c.upper()) == 1 else c for c in name)


def _steps(path: str) -> list[str]:
    steps: list[str] = []
    for step in path.split("\\"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    return steps

"""Windows paths and file names.

Container paths are normalised as containerd and the kubelet do before they call the Host Compute
Service. Names follow the Win32 rules; an image cannot contain a file whose name they reject.
"""

import re

from winpod.errors import InvalidInput

MAX_NAME = 255
MAX_PIPE = 256

_PIPE = "\\\\.\\pipe\\"
_UNC = re.compile(r"\\\\[^\\]+\\[^\\]+")
_DRIVE = re.compile(r"[A-Za-z]:")
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_NO_PIPE = re.compile(r"[/\\\x00-\x1f]")
_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9¹²³])", re.IGNORECASE)


def is_named_pipe(path: str) -> bool:
    return path.lower().startswith(_PIPE)


def named_pipe_name(path: str) -> str:
    r"""Return NAME of `\\.\pipe\NAME`, validated so that it can also be a file name."""
    name = path[len(_PIPE) :]
    if name in ("", ".", "..") or _NO_PIPE.search(name) or len(path) > MAX_PIPE:
        raise InvalidInput(
            f'"{path}" is not a named pipe.',
            rf"Write \\.\pipe\NAME, without further slashes, at most {MAX_PIPE} characters.",
        )
    return name


def container_path(path: str) -> str:
    r"""Normalise a container path: `/data` becomes `C:\data`; pipes and shares are kept."""
    if not path:
        raise InvalidInput("A container path is empty.", r"Write a path such as C:\data.")
    if path.startswith("\\\\") and (is_named_pipe(path) or _UNC.match(path)):
        return path
    text = path.replace("/", "\\")
    drive = text[:2] if _DRIVE.match(text) else "C:"
    return f"{drive}\\" + "\\".join(_components(text.removeprefix(drive)))


def mount_destination(path: str) -> str:
    """Normalise a mount destination. A whole drive is allowed, except C:."""
    if _DRIVE.fullmatch(path) and path.upper() != "C:":
        return path
    destination = container_path(path)
    if destination.upper() == "C:\\":
        raise InvalidInput(
            "destination path can not be C drive", r"Mount a directory in it, such as C:\data."
        )
    return destination


def host_path(path: str) -> str:
    r"""Convert a client's path to a host path: for a Windows client, `C:\x` and `Z:\x` are `/x`.

    This reverses the kubelet and containerd, which read `/x` as `C:\x`. `Z:` is the host's root for
    programs under Wine. Other drives do not exist on the host.
    """
    if not _DRIVE.match(path):
        return path
    if path[0].upper() not in "CZ":
        raise InvalidInput(
            f"{path} is on a drive that this host does not have.",
            r"Write /x, or C:\x or Z:\x from a client on Windows.",
        )
    return "/" + "/".join(_components(path[2:].replace("/", "\\")))


def invalid_name_reason(name: str) -> str:
    """Return why Windows does not allow this file name; empty if it does."""
    if not name or name in (".", ".."):
        return "it is not a file name"
    if match := _FORBIDDEN.search(name):
        return f"it has the character {match.group()!r}"
    if name[-1] in ". ":
        return "it ends in a dot or a space"
    if is_device_name(name):
        return f"{name.partition('.')[0].rstrip().upper()} is a device"
    if len(name.encode("utf-16-le", "surrogatepass")) // 2 > MAX_NAME:
        return f"it is longer than {MAX_NAME} characters"
    return ""


def is_device_name(name: str) -> bool:
    """Whether Windows opens the name as a device in every directory, such as `NUL`, `com1.txt`."""
    return _DEVICE.fullmatch(name.partition(".")[0].rstrip(" ")) is not None


def casefold_name(name: str) -> str:
    """Return a key that is equal for names of the same file on Windows.

    NTFS upper-cases character by character, so characters that would grow (`ß`) are kept.
    """
    return "".join(u if len(u := c.upper()) == 1 else c for c in name)


def _components(path: str) -> list[str]:
    components: list[str] = []
    for component in path.split("\\"):
        if component == "..":
            del components[-1:]
        elif component not in ("", "."):
            components.append(component)
    return components

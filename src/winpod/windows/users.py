"""The accounts that every Windows container has. Each is a Linux user of its own.

The administrator owns what the image brings, so it is the user that owns files: 0.

Names are taken in any case, with or without the authority before them, or as a SID. An account that
is not here cannot log on, and the sentence is the one Windows has for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from winpod.windows.errors import WinpodError


@dataclass(frozen=True, slots=True)
class User:
    name: str
    authority: str
    sid: str
    uid: int

    @property
    def is_administrator(self) -> bool:
        return self.name in ("ContainerAdministrator", "SYSTEM")


ADMINISTRATOR = User("ContainerAdministrator", "User Manager", "S-1-5-93-2-1", 0)
USER = User("ContainerUser", "User Manager", "S-1-5-93-2-2", 1001)
USERS = (
    ADMINISTRATOR,
    USER,
    User("SYSTEM", "NT AUTHORITY", "S-1-5-18", 1002),
    User("LOCAL SERVICE", "NT AUTHORITY", "S-1-5-19", 1003),
    User("NETWORK SERVICE", "NT AUTHORITY", "S-1-5-20", 1004),
)


class LogonFailure(WinpodError):
    def __init__(self, name: str) -> None:
        known = ", ".join(user.name for user in USERS)
        super().__init__(
            f'"{name}": The user name or password is incorrect. (0x52e)',
            f"The accounts of a container are {known}.",
        )


def find_user(name: str) -> User:
    """The account of a name or SID; an image that names none runs as its administrator."""
    if not name:
        return ADMINISTRATOR
    wanted = name.upper()
    authority, _, plain = wanted.rpartition("\\")
    for user in USERS:
        if wanted == user.sid:
            return user
        if plain == user.name.upper() and authority in ("", ".", user.authority.upper()):
            return user
    raise LogonFailure(name)

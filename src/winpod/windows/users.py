"""The accounts of every Windows container. Each is mapped to its own Linux user.

ContainerAdministrator owns the image's files, so its uid is 0. Names are case-insensitive, with or
without the authority, or SIDs. Any other account fails to log on, with the error of Windows.
"""

from __future__ import annotations

from dataclasses import dataclass

from winpod.errors import WinpodError


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
        names = ", ".join(user.name for user in USERS)
        super().__init__(
            f'"{name}": The user name or password is incorrect. (0x52e)',
            f"The accounts of a container are {names}.",
        )


def find_user(name: str) -> User:
    """Return the account of a name or SID; the default is ContainerAdministrator."""
    if not name:
        return ADMINISTRATOR
    upper = name.upper()
    authority, _, plain = upper.rpartition("\\")
    for user in USERS:
        if upper == user.sid:
            return user
        if plain == user.name.upper() and authority in ("", ".", user.authority.upper()):
            return user
    raise LogonFailure(name)

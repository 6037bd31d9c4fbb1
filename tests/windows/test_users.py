"""Tests of container accounts by name, authority and SID."""

import pytest

from winpod.windows.users import ADMINISTRATOR, USER, USERS, LogonFailure, find_user


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", ADMINISTRATOR),
        ("ContainerUser", USER),
        ("containeruser", USER),
        ("User Manager\\ContainerUser", USER),
        (".\\ContainerAdministrator", ADMINISTRATOR),
        ("S-1-5-93-2-2", USER),
        ("NT AUTHORITY\\System", USERS[2]),
    ],
)
def test_account_is_found_by_its_names(name: str, found: object) -> None:
    assert find_user(name) == found


@pytest.mark.parametrize("name", ["nobody", "CORP\\ContainerUser", "S-1-5-21-1", "root", "\\"])
def test_unknown_account_fails_with_the_windows_error(name: str) -> None:
    with pytest.raises(LogonFailure, match=r"The user name or password is incorrect. \(0x52e\)"):
        find_user(name)


def test_every_account_has_its_own_uid() -> None:
    assert len({user.uid for user in USERS}) == len({user.sid for user in USERS}) == len(USERS)

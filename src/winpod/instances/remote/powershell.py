"""All the PowerShell there is: what Windows Server 2019 to 2025 tells and takes in no other way.

Each is one statement without double quotes, so that it is one argument of one call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from winpod.instances.remote.scripts import OddAnswer, call
from winpod.instances.rules.state import Network
from winpod.windows.errors import InvalidInput

BOOTED = "(Get-CimInstance -ClassName Win32_OperatingSystem).LastBootUpTime.ToFileTimeUtc()"
FREE_BYTES = "(Get-PSDrive -Name C).Free"
NETWORKS = "Get-HnsNetwork | Select-Object -Property Id, Name, Type | ConvertTo-Json -Compress"

_SEE_NETWORKS = "See what Get-HnsNetwork says there, and that the service hns runs."
_NETWORK_ID = re.compile(r"[0-9A-Fa-f-]{36}")


def powershell(*statements: str) -> str:
    return call(
        "powershell.exe", "-NoProfile", "-NonInteractive", "-Command", "; ".join(statements)
    )


def remove_network(network_id: str) -> str:
    if not _NETWORK_ID.fullmatch(network_id):
        raise InvalidInput(f"{network_id} is no id of a network.", _SEE_NETWORKS)
    return powershell(
        f"Get-HnsNetwork | Where-Object {{ $_.Id -eq '{network_id}' }} | Remove-HnsNetwork"
    )


def read_networks(text: str) -> tuple[Network, ...]:
    """One object, a list of them, or nothing at all where there are none."""
    if not text.strip():
        return ()
    try:
        found = json.loads(text)
    except ValueError as error:
        said = text.strip()[:200]
        raise OddAnswer(f"Get-HnsNetwork printed no JSON: {said}.", _SEE_NETWORKS) from error
    networks = found if isinstance(found, list) else [found]
    return tuple(map(_network, networks))


def _network(found: Any) -> Network:
    if not isinstance(found, Mapping):
        raise OddAnswer(
            f"Get-HnsNetwork listed something that is no network: {found!r:.200}.", _SEE_NETWORKS
        )
    values = {str(key).lower(): value for key, value in found.items()}
    return Network(*(str(values.get(key) or "") for key in ("id", "name", "type")))

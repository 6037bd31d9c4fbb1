"""Whether steps can make an instance what it should be at all; if not, nothing is touched."""

from __future__ import annotations

from winpod.instances.errors import DowngradeRefused, InstanceUnfit
from winpod.instances.rules.desired import Desired, WantedFile
from winpod.instances.rules.state import FeatureState, State
from winpod.instances.rules.versions import Version
from winpod.windows.errors import InvalidInput

OLDEST = 17763
_SPARE = 512 << 20


def refuse_unfit(state: State, desired: Desired, to_put: tuple[WantedFile, ...]) -> None:
    if state.build.number < OLDEST:
        raise InstanceUnfit(
            f"the instance has {state.build.describe()}, and pods need Windows Server 2019 "
            f"(10.0.{OLDEST}) or later.",
            "Install a later Windows Server, or take the instance out.",
        )
    installed = _installed(state)
    if installed and installed > Version.parse(desired.version):
        raise DowngradeRefused(state.version, desired.version)
    for feature in desired.features:
        if state.features.get(feature, FeatureState.ABSENT) is FeatureState.ABSENT:
            raise InstanceUnfit(
                f"{state.product} has no feature {feature}.",
                "Use an edition of Windows Server that has it."
                if feature == "Containers"
                else "Use a machine that has it, or set hypervisor to false.",
            )
    needed = sum(file.size for file in to_put)
    if to_put and needed + _SPARE > state.free_bytes:
        raise InstanceUnfit(
            f"drive C: has {state.free_bytes >> 20} MiB left, and the files to be put on it need "
            f"{needed >> 20} MiB and {_SPARE >> 20} MiB to spare.",
            "Make room on the instance, or give it a larger disk.",
        )


def _installed(state: State) -> Version | None:
    """None of an instance whose version file says no version: it is written anew."""
    try:
        return Version.parse(state.version)
    except InvalidInput:
        return None

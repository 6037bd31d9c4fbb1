"""When a client accepts a running daemon."""

import pytest

from winpod.cri.daemon import DaemonInfo, DaemonRequirements
from winpod.windows.builds import parse_build

OURS, OTHER = parse_build("2022"), parse_build("2019")


@pytest.mark.parametrize(
    ("requirements", "background", "foreground"),
    [
        pytest.param(DaemonRequirements(), True, True, id="anything"),
        pytest.param(DaemonRequirements(OURS), True, True, id="its build"),
        pytest.param(DaemonRequirements(OTHER), False, True, id="another build, by default"),
        pytest.param(
            DaemonRequirements(OTHER, insist=True), False, False, id="another build, named"
        ),
        pytest.param(DaemonRequirements(OURS, emulation=True), False, True, id="emulation"),
    ],
)
def test_foreground_runtime_is_accepted_unless_the_client_insists(
    requirements: DaemonRequirements, background: bool, foreground: bool
) -> None:
    for is_background, expected in ((True, background), (False, foreground)):
        assert requirements.is_met_by(DaemonInfo("s", str(OURS), 1, is_background)) == expected


def test_runtime_with_emulation_satisfies_every_client() -> None:
    daemon = DaemonInfo("s", str(OURS), 1, background=True, emulation=True)
    assert DaemonRequirements(OURS).is_met_by(daemon)
    assert DaemonRequirements(OURS, emulation=True).is_met_by(daemon)

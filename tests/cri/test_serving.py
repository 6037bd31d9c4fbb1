"""When a client takes the runtime that it finds."""

import pytest

from winpod.cri.serving import Serving, Wanted
from winpod.windows.builds import parse_build

OURS, OTHER = parse_build("2022"), parse_build("2019")


@pytest.mark.parametrize(
    ("wanted", "background", "set_up"),
    [
        pytest.param(Wanted(), True, True, id="anything"),
        pytest.param(Wanted(OURS), True, True, id="its build"),
        pytest.param(Wanted(OTHER), False, True, id="another build, as a default"),
        pytest.param(Wanted(OTHER, insist=True), False, False, id="another build, named"),
        pytest.param(Wanted(OURS, emulation=True), False, True, id="leave to emulate"),
    ],
)
def test_one_that_somebody_set_up_stays_what_it_is_unless_a_client_insists(
    wanted: Wanted, background: bool, set_up: bool
) -> None:
    for is_background, met in ((True, background), (False, set_up)):
        assert wanted.is_met_by(Serving("s", str(OURS), 1, is_background)) == met


def test_one_that_may_emulate_is_for_who_needs_it_and_who_does_not() -> None:
    serving = Serving("s", str(OURS), 1, background=True, emulation=True)
    assert Wanted(OURS).is_met_by(serving)
    assert Wanted(OURS, emulation=True).is_met_by(serving)

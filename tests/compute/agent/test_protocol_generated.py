"""The committed constants and documentation of the agent protocol match their table."""

from pathlib import Path

from native.generate_protocol import REPOSITORY, generate

from winpod.compute.agent.protocol import Frame


def test_outputs_are_up_to_date(tmp_path: Path) -> None:
    for path in generate(tmp_path):
        assert (tmp_path / path).read_text() == (REPOSITORY / path).read_text(), "make protocol"


def test_frame_numbers_stay_because_pods_outlive_the_runtime() -> None:
    assert [frame.value for frame in Frame] == [*range(1, 11), 32, 33, 34, *range(65, 74)]

"""Images for the tests of the command line, packed once by the command itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def story_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout that `examples/pack-images` makes."""
    layout = tmp_path_factory.mktemp("images") / "layout"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [EXAMPLES / "pack-images", layout],
        check=True,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
    )
    return layout

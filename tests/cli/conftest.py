"""Images for the tests of the command line, packed once by the command itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from winpod.images.store_lock import FileLock

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def story_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout that `examples/pack-images` makes, once for all workers of the session."""
    of_worker = tmp_path_factory.getbasetemp()
    of_all = of_worker.parent if "PYTEST_XDIST_WORKER" in os.environ else of_worker
    layout = of_all / "story-images"
    lock = FileLock.take(of_all / "story-images.lock")
    try:
        if not layout.exists():
            _pack(layout)
    finally:
        lock.release()
    return layout


def _pack(layout: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    half_made = layout.with_suffix(".half-made")
    subprocess.run(
        [EXAMPLES / "pack-images", half_made],
        check=True,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
    )
    half_made.rename(layout)

"""Images for the CLI tests, packed once per session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from winpod.files import FileLock

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def story_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the layout built by `examples/pack-images`, shared by all workers."""
    worker_directory = tmp_path_factory.getbasetemp()
    session_directory = (
        worker_directory.parent if "PYTEST_XDIST_WORKER" in os.environ else worker_directory
    )
    layout = session_directory / "story-images"
    lock = FileLock.acquire(session_directory / "story-images.lock")
    try:
        if not layout.exists():
            _pack(layout)
    finally:
        lock.release()
    return layout


def _pack(layout: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    partial = layout.with_suffix(".half-made")
    subprocess.run(
        [EXAMPLES / "pack-images", partial],
        check=True,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
    )
    partial.rename(layout)

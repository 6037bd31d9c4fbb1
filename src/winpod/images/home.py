"""Where the user's own files are."""

import os
from pathlib import Path


def user_home() -> Path:
    """The home directory; for a user without one, as in a container, a place that holds nothing."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)

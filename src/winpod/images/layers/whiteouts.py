"""Whiteouts: entries of a layer that delete names of the layers below it.

In an archive, `.wh.NAME` deletes a name and `.wh..wh..opq` the content of a directory. On disk they
are what overlayfs reads: a character device 0/0, and an extended attribute of the directory.
"""

from __future__ import annotations

import os
import stat

WHITEOUT_PREFIX = ".wh."
OPAQUE_WHITEOUT = ".wh..wh..opq"
AUFS_PREFIX = ".wh..wh."
"""Prefix of AUFS metadata, which is ignored, as containerd does."""
OPAQUE_ATTRIBUTE = "trusted.overlay.opaque"


def create_whiteout(name: str, directory: int) -> None:
    """Create the whiteout of a name in an open directory."""
    os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=directory)


def set_opaque(directory: int) -> None:
    """Hide the content that lower layers have in an open directory."""
    os.setxattr(directory, OPAQUE_ATTRIBUTE, b"y")

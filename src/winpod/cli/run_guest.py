"""What `winpod run` settles about a microVM before the runtime makes it."""

from __future__ import annotations

import os
import sys

from winpod.cli.run_image import Isolation
from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.compute.hypervisor.template import Templates
from winpod.cri.config import Config
from winpod.images.base import find_base

_BOOTING = "booting the first microVM, for up to a minute; others are cloned from it"


def needs_emulation(isolation: Isolation, config: Config) -> bool:
    """Whether the runtime has to be one that may emulate, as this person may have it."""
    return isolation is Isolation.HYPERVISOR and _may_emulate(config)


def tell_of_first_boot(isolation: Isolation, config: Config) -> None:
    """A pod that waits for a boot would seem to hang."""
    base = find_base(config.root)
    if isolation is Isolation.HYPERVISOR and base:
        templates = Templates(config.root, base, _may_emulate(config))
        if not templates.trouble() and not templates.is_made():
            print(f"winpod: {_BOOTING} ...", file=sys.stderr, flush=True)


def _may_emulate(config: Config) -> bool:
    return is_emulation_allowed(config.hypervisor.allow_emulation, os.environ)

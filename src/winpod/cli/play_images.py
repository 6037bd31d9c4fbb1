"""The images that pods will need, brought before the pods: a pull here shows its progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from winpod.cli.pull import pull_image
from winpod.cri.config import Config
from winpod.images.credentials import read_pull_secrets
from winpod.images.errors import NotPulled
from winpod.images.layout import open_layout
from winpod.images.pull import variant_for
from winpod.images.pull_choice import resolve_handler
from winpod.images.references import parse_reference
from winpod.images.source import parse_layout_name
from winpod.images.store import Store
from winpod.windows.builds import parse_build
from winpod.windows.errors import WinpodError


async def bring_images(
    pulls: Iterable[dict[str, Any]], layouts: Iterable[str], config: Config
) -> list[str]:
    """Those that came out of layouts of this machine, which nobody has to ask a registry for.

    What cannot be pulled is said, and left to the nodes, which try again and tell.
    """
    places = [Path(layout) for layout in layouts]
    local = []
    for pull in pulls:
        image, here = pull["image"], replace(config, host_build=parse_build(pull["build"]))
        handler = resolve_handler(config.handlers, pull["handler"])
        found = _in_layout(image, places)
        try:
            if found:
                await pull_image(found, handler, here, quiet=True)
                local.append(image)
                continue
            try:
                with Store(here.root, host=here.host_build, handlers=here.handlers) as store:
                    await variant_for(store, image, handler, here.host_build)
            except NotPulled:
                secrets = read_pull_secrets([json.loads(text) for text in pull["secrets"]])
                await pull_image(image, handler, here, credentials=secrets)
        except WinpodError as error:
            print(f"winpod: {error}", file=sys.stderr)
    return local


def _in_layout(image: str, layouts: Iterable[Path]) -> str:
    """The image's name in the first layout that has it."""
    if parse_layout_name(image):
        return image
    reference = parse_reference(image)
    for path in layouts:
        layout = open_layout(path)
        try:
            if layout.find(reference):
                return f"oci:{path}:{image}"
        finally:
            layout.close()
    return ""

"""Pulls of `winpod play`, which the daemon runs: the user's credentials, and the progress."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Self

from winpod.cli.images.pull import show_progress
from winpod.errors import InvalidInput, WinpodError
from winpod.images.pull.singleflight import (
    LOGGER,
    LayerProgress,
    LayerState,
    ProgressLog,
    ignore_progress,
)
from winpod.images.references import parse_reference
from winpod.images.registry.auth import ResolvedCredentials, read_docker_config
from winpod.images.registry.hosts import hosts_directories, registry_hosts
from winpod.images.resolver import parse_layout_name
from winpod.play.apiserver.objects import Document
from winpod.play.apiserver.pods import images_of, pod_template_of


async def user_credentials(documents: Iterable[Document]) -> ResolvedCredentials:
    """Return the user's docker credentials for the images of these objects.

    The daemon may run with another home and cannot run the user's credential helpers.
    """
    try:
        docker = read_docker_config()
    except InvalidInput as error:
        print(f"winpod: {error}", file=sys.stderr)
        return ResolvedCredentials()
    if docker is None:
        return ResolvedCredentials()
    pods = filter(None, map(pod_template_of, documents))
    images = dict.fromkeys(image for pod in pods for image in images_of(pod))
    return await docker.resolve(dict.fromkeys(_registries(images)))


def _registries(images: Iterable[str]) -> Iterator[str]:
    """Yield the registries of the images, and their mirrors."""
    for image in images:
        try:
            if parse_layout_name(image):
                continue
            registry = parse_reference(image).registry
            yield registry
            for host in registry_hosts(registry, hosts_directories()):
                if not host.serves(registry):
                    yield host.name
        except WinpodError:
            continue  # the daemon reports it


class PullOutput:
    """Shows the progress of pulls: bars on a terminal, log lines otherwise."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._layers = ProgressLog("", ignore_progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, line: Document) -> None:
        match line["type"]:
            case "pulling":
                callback = self._stack.enter_context(show_progress())
                self._layers = ProgressLog(line["image"], callback)
                LOGGER.info("Pulling image %s, handler %s", line["image"], line["handler"])
            case "layer":
                state = LayerState(line["state"])
                self._layers.report(
                    LayerProgress(line["digest"], state, line["done"], line["total"])
                )
            case "pulled":
                LOGGER.info(
                    "Pulled image %s, id %s in %.1f s", line["image"], line["id"], line["seconds"]
                )
                self._stack.close()
            case "pull failed":
                self._stack.close()
                print(f"winpod: {line['message']}", file=sys.stderr)

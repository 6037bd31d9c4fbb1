"""What the author of a pod wrote, against what its images are: both sides of what cannot be both.

Told whatever nodes there are, since no node will ever settle it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from winpod.windows.builds import parse_version
from winpod.windows.handlers import PROCESS, Handlers
from winpod.windows.objects import ARCH_LABEL, BUILD_LABEL, OS_LABEL, Pod
from winpod.windows.placement import Cluster, intended_os
from winpod.windows.platforms import Image, Wanted, choose_manifest
from winpod.windows.scheduling import Admitted, admit
from winpod.windows.starting import Images, misfit


def find_contradiction(pod: Pod, cluster: Cluster, images: Images) -> str:
    """The first there is, as a sentence; `images` are those that are known for certain."""
    admitted, refusals = admit(pod, cluster.classes)
    if refusals:
        return ""  # which is the API server's to say
    stated = intended_os(pod, cluster.classes, {}, cluster.handlers)
    found = chain(
        _of_systems(admitted),
        _of_images(images) if not stated else (),
        _of_system(admitted, stated, images) if stated else (),
        _of_architecture(admitted, images) if stated == "windows" else (),
        _of_build(admitted, cluster.handlers, images) if stated == "windows" else (),
    )
    return next(found, "")


def _of_systems(admitted: Admitted) -> Iterator[str]:
    """spec.os, and the nodes that the pod or its class selects."""
    os, selected = admitted.pod.os, dict(admitted.pod.node_selector).get(OS_LABEL, "")
    if os and selected and os != selected and "windows" in (os, selected):
        yield f"spec.os.name is {os}, and {_selects(admitted, OS_LABEL)}."


def _of_images(images: Images) -> Iterator[str]:
    """An image that only Windows runs beside one that Windows does not run."""
    for text, image in images.items():
        for other, another in images.items():
            if _is_for_windows(image) and "windows" not in another.operating_systems():
                yield (
                    f"{text} is for windows only and {other} for {_platforms(another)}, and the "
                    "containers of a pod run on one node."
                )


def _of_system(admitted: Admitted, stated: str, images: Images) -> Iterator[str]:
    for text, image in images.items():
        if stated == "windows" and stated not in image.operating_systems():
            yield f"{_says_os(admitted, stated)}, and {text} is for {_platforms(image)} only."
        if stated != "windows" and _is_for_windows(image):
            yield f"{_says_os(admitted, stated)}, and {text} is for windows only."


def _of_architecture(admitted: Admitted, images: Images) -> Iterator[str]:
    selected = dict(admitted.pod.node_selector).get(ARCH_LABEL, "")
    asked = admitted.pod.narrowing.architecture
    for architecture, words in (
        (selected, _selects(admitted, ARCH_LABEL)),
        (asked, f"the pod's annotations ask for {asked}"),
    ):
        wanted = Wanted("windows", architecture)
        if architecture:
            yield from _misfits(words, (wanted,), images, admitted.pod)


def _of_build(admitted: Admitted, handlers: Handlers, images: Images) -> Iterator[str]:
    """The kernel that containers meet: of the handler's guest, else of the nodes selected."""
    selected = parse_version(dict(admitted.pod.node_selector).get(BUILD_LABEL, ""))
    handler = handlers.find(admitted.handler) or PROCESS
    kernel = handler.guest or (selected.base if selected else None)
    asked = admitted.pod.narrowing.os_version
    if kernel is None and not asked:
        return
    words = f"the pod's annotations ask for build {asked}"
    if kernel and handler.guest:
        words = f"RuntimeClass {admitted.pod.runtime_class} has guests of {kernel.describe()}"
    elif kernel:
        words = f"{_selects(admitted, BUILD_LABEL)}, which is {kernel.describe()}"
    architectures = {m.platform.architecture for i in images.values() for m in i.manifests}
    wanted = tuple(
        Wanted("windows", architecture, kernel, narrowed_to=asked)
        for architecture in sorted(architectures)
    )
    yield from _misfits(words, wanted, images, admitted.pod)


def _misfits(words: str, wanted: tuple[Wanted, ...], images: Images, pod: Pod) -> Iterator[str]:
    for text, image in images.items():
        if pod.host_process and not image.is_index:
            continue
        if not any(choose_manifest(image.manifests, one) for one in wanted):
            yield f"{words}, and {misfit(image, text, wanted[0]).sentence}."


def _says_os(admitted: Admitted, stated: str) -> str:
    pod = admitted.pod
    if pod.os:
        return f"spec.os.name is {pod.os}"
    if dict(pod.node_selector).get(OS_LABEL):
        return _selects(admitted, OS_LABEL)
    if pod.narrowing.os:
        return f"the pod's annotations ask for {stated}"
    if pod.runtime_class:
        return f"RuntimeClass {pod.runtime_class} is for {stated}"
    return f"the pod's required node affinity is for {stated}"


def _selects(admitted: Admitted, key: str) -> str:
    value = dict(admitted.pod.node_selector).get(key, "")
    if origin := admitted.selector_from.get(key):
        return f"RuntimeClass {origin} selects {key}={value}"
    return f"spec.nodeSelector has {key}={value}"


def _is_for_windows(image: Image) -> bool:
    return image.operating_systems() == {"windows"}


def _platforms(image: Image) -> str:
    return ", ".join(sorted({str(m.platform) for m in image.manifests}))

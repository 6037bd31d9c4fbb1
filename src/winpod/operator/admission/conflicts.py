"""Finds conflicts between a pod's spec and its images.

They are independent of the nodes, since no node can resolve them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from winpod.labels import ARCH_LABEL, BUILD_LABEL, OS_LABEL
from winpod.placement.evaluator import Cluster, intended_os
from winpod.placement.model import Pod
from winpod.placement.predicates import AdmittedPod, admit_with_runtime_class
from winpod.placement.start_checks import ImagesByReference, mismatch_message
from winpod.windows.builds import parse_version
from winpod.windows.handlers import PROCESS_HANDLER, Handlers
from winpod.windows.platforms import Image, PlatformRequirement, choose_manifest


def find_conflict(pod: Pod, cluster: Cluster, images: ImagesByReference) -> str:
    """Return a message about the first conflict; `images` are those resolved with certainty."""
    admitted, refusals = admit_with_runtime_class(pod, cluster.classes)
    if refusals:
        return ""  # the API server rejects it
    stated = intended_os(pod, cluster.classes, {}, cluster.handlers)
    conflicts = chain(
        _os_conflicts(admitted),
        _mixed_image_conflicts(images) if not stated else (),
        _image_os_conflicts(admitted, stated, images) if stated else (),
        _architecture_conflicts(admitted, images) if stated == "windows" else (),
        _build_conflicts(admitted, cluster.handlers, images) if stated == "windows" else (),
    )
    return next(conflicts, "")


def _os_conflicts(admitted: AdmittedPod) -> Iterator[str]:
    """Compare spec.os with the nodes that the pod or its class selects."""
    os, selected = admitted.pod.os, dict(admitted.pod.node_selector).get(OS_LABEL, "")
    if os and selected and os != selected and "windows" in (os, selected):
        yield f"spec.os.name is {os}, and {_selector_source(admitted, OS_LABEL)}."


def _mixed_image_conflicts(images: ImagesByReference) -> Iterator[str]:
    """Find a Windows-only image beside one without Windows support."""
    for text, image in images.items():
        for other, another in images.items():
            if _is_for_windows(image) and "windows" not in another.operating_systems():
                yield (
                    f"{text} is for windows only and {other} for {_platforms(another)}, but all "
                    "containers of a pod run on the same node."
                )


def _image_os_conflicts(
    admitted: AdmittedPod, stated: str, images: ImagesByReference
) -> Iterator[str]:
    for text, image in images.items():
        if stated == "windows" and stated not in image.operating_systems():
            yield f"{_os_source(admitted, stated)}, and {text} is for {_platforms(image)} only."
        if stated != "windows" and _is_for_windows(image):
            yield f"{_os_source(admitted, stated)}, and {text} is for windows only."


def _architecture_conflicts(admitted: AdmittedPod, images: ImagesByReference) -> Iterator[str]:
    selected = dict(admitted.pod.node_selector).get(ARCH_LABEL, "")
    constraint = admitted.pod.platform_constraint.architecture
    for architecture, source in (
        (selected, _selector_source(admitted, ARCH_LABEL)),
        (constraint, f"the pod's annotations require {constraint}"),
    ):
        requirement = PlatformRequirement("windows", architecture)
        if architecture:
            yield from _mismatches(source, (requirement,), images, admitted.pod)


def _build_conflicts(
    admitted: AdmittedPod, handlers: Handlers, images: ImagesByReference
) -> Iterator[str]:
    """Compare images with the containers' kernel: the handler's guest, else the selected nodes."""
    selected = parse_version(dict(admitted.pod.node_selector).get(BUILD_LABEL, ""))
    handler = handlers.find(admitted.handler) or PROCESS_HANDLER
    kernel = handler.guest or (selected.base if selected else None)
    constraint = admitted.pod.platform_constraint.os_version
    if kernel is None and not constraint:
        return
    source = f"the pod's annotations require build {constraint}"
    if kernel and handler.guest:
        source = f"RuntimeClass {admitted.pod.runtime_class} has guests of {kernel.describe()}"
    elif kernel:
        source = f"{_selector_source(admitted, BUILD_LABEL)}, which is {kernel.describe()}"
    architectures = {m.platform.architecture for i in images.values() for m in i.manifests}
    requirements = tuple(
        PlatformRequirement("windows", architecture, kernel, constraint=constraint)
        for architecture in sorted(architectures)
    )
    yield from _mismatches(source, requirements, images, admitted.pod)


def _mismatches(
    source: str, requirements: tuple[PlatformRequirement, ...], images: ImagesByReference, pod: Pod
) -> Iterator[str]:
    for text, image in images.items():
        if pod.host_process and not image.is_index:
            continue
        if not any(choose_manifest(image.manifests, requirement) for requirement in requirements):
            yield f"{source}, and {mismatch_message(image, text, requirements[0]).message}."


def _os_source(admitted: AdmittedPod, stated: str) -> str:
    pod = admitted.pod
    if pod.os:
        return f"spec.os.name is {pod.os}"
    if dict(pod.node_selector).get(OS_LABEL):
        return _selector_source(admitted, OS_LABEL)
    if pod.platform_constraint.os:
        return f"the pod's annotations require {stated}"
    if pod.runtime_class:
        return f"RuntimeClass {pod.runtime_class} is for {stated}"
    return f"the pod's required node affinity is for {stated}"


def _selector_source(admitted: AdmittedPod, key: str) -> str:
    value = dict(admitted.pod.node_selector).get(key, "")
    if origin := admitted.selector_from.get(key):
        return f"RuntimeClass {origin} selects {key}={value}"
    return f"spec.nodeSelector has {key}={value}"


def _is_for_windows(image: Image) -> bool:
    return image.operating_systems() == {"windows"}


def _platforms(image: Image) -> str:
    return ", ".join(sorted({str(m.platform) for m in image.manifests}))

"""The checks that the kubelet and the runtime of a node make when a pod starts.

The scheduler does not check handler, isolation and image build, so a pod that fails one of them is
retried on that node forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from winpod.labels import BUILD_LABEL
from winpod.placement.model import Node, Pod
from winpod.placement.predicates import AdmittedPod
from winpod.placement.verdicts import Cause, Reason, Stage
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, PROCESS_HANDLER, Handler, Handlers
from winpod.windows.isolation import Isolation, describe_accepted_builds, guest_fits_host
from winpod.windows.platforms import (
    Image,
    Manifest,
    Platform,
    PlatformRequirement,
    choose_manifest,
    matches_platform,
)

ImagesByReference = Mapping[str, Image]
"""Resolved images by the reference in the pod; a missing reference could not be resolved."""

_MIN_BUILD_FOR_PODS = 17763


@dataclass(slots=True)
class StartCheck:
    handler: Handler | None = None
    kernel: Build | None = None
    reasons: tuple[Reason, ...] = ()
    unknown: tuple[Reason, ...] = ()
    manifests: tuple[tuple[str, Manifest], ...] = ()


def _unstarted(cause: Cause, message: str, symptom: str = "", subject: str = "") -> Reason:
    return Reason(cause, Stage.START, message, symptom, subject)


def check_start(
    admitted: AdmittedPod,
    node: Node,
    images: ImagesByReference,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> StartCheck:
    pod = admitted.pod
    start = StartCheck()
    if pod.os and pod.os != node.os:
        start.reasons += (
            _unstarted(
                Cause.OS,
                f"the pod is for {pod.os} and the node runs {node.os}",
                "PodOSNotSupported",
                node.os,
            ),
        )
    if node.os == "windows":
        _start_on_windows(admitted, node, handlers, start)
    if not start.reasons:
        _choose_images(pod, node, images, start)
    return start


def _start_on_windows(
    admitted: AdmittedPod, node: Node, handlers: Handlers, start: StartCheck
) -> None:
    served = find_served_handler(admitted.handler, node, handlers)
    if served is None and node.handlers is None:
        message = (
            f'the node does not report its handlers, and "{admitted.handler}" is not a built-in one'
        )
        start.unknown += (_unstarted(Cause.HANDLER, message, subject=admitted.handler),)
        return
    if served is None:
        start.reasons += (_missing_handler(admitted.handler, node),)
        return
    start.handler = served
    host = node.build
    if host is None:
        start.unknown += (
            _unstarted(
                Cause.BUILD,
                f"the node does not report its Windows build (in a {BUILD_LABEL} label such as "
                "10.0.20348, or in its kernel version)",
            ),
        )
        return
    start.kernel = served.kernel_build(host)
    start.reasons += tuple(_isolation_reasons(admitted.pod, served, node, host))


def find_served_handler(name: str, node: Node, handlers: Handlers) -> Handler | None:
    """Return the handler that the node's runtime serves under this name, None if it has none.

    A node that reports no handlers is assumed to have the built-in ones. Only winpod's runtime
    serves aliases. An advertised name that is not configured resolves by its longest prefix.
    """
    handler = handlers.find(name)
    if name == "":
        return PROCESS_HANDLER
    if node.handlers is None:
        return handler
    if node.runtime == "winpod" and handler and handler.name in node.handlers:
        return handler
    return handlers.resolve_advertised(name) if name in node.handlers else None


def _missing_handler(name: str, node: Node) -> Reason:
    reported = ", ".join(sorted(node.handlers or ())) or "not reported"
    return _unstarted(
        Cause.HANDLER,
        f'the node\'s runtime has no handler "{name}" (handlers: {reported})',
        f'FailedCreatePodSandBox: no runtime for "{name}" is configured',
        name,
    )


def _isolation_reasons(pod: Pod, handler: Handler, node: Node, host: Build) -> Iterable[Reason]:
    if host.number < _MIN_BUILD_FOR_PODS:
        yield _unstarted(
            Cause.BUILD,
            f"{host.describe()} is too old for pods, which need 10.0.{_MIN_BUILD_FOR_PODS}",
            "pod support is not available on Windows versions previous to RS5 (17763)",
        )
    if pod.host_process and node.runtime == "winpod":
        yield _unstarted(
            Cause.ISOLATION, "HostProcess containers need a Windows host, which the node is not"
        )
    if handler.isolation is Isolation.PROCESS:
        return
    if pod.host_process:
        yield _unstarted(
            Cause.ISOLATION,
            f"HostProcess containers run on the host, but {handler.name} runs them in a guest",
            "UVM does not support HostProcess containers",
        )
    guest = handler.kernel_build(host)
    if not guest_fits_host(guest, host):
        yield _unstarted(
            Cause.ISOLATION,
            f"a guest of build {guest} cannot run on the older {host.describe()}",
            subject="guest",
        )
    elif node.runtime == "docker":
        yield _unstarted(
            Cause.ISOLATION, "Docker as the node's runtime supports process isolation only"
        )
    elif node.runtime == "containerd" and guest.base != host:
        yield _unstarted(
            Cause.ISOLATION,
            f"containerd selects images for the node's build {host}, so it finds none for a "
            f"guest of build {guest}",
            "no match for platform in manifest: not found",
            "guest",
        )


def _choose_images(pod: Pod, node: Node, images: ImagesByReference, start: StartCheck) -> None:
    requirement = PlatformRequirement(
        os=node.os,
        architecture=node.architecture,
        kernel=start.kernel,
        constraint=pod.platform_constraint.os_version,
    )
    for text in pod.images:
        image = images.get(text)
        if image is None:
            start.unknown += (
                _unstarted(Cause.IMAGE, f"image {text} could not be resolved", subject=text),
            )
            continue
        if reason := _constraint_mismatch(pod, node, text):
            start.reasons += (reason,)
            continue
        required = replace(requirement, kernel=None) if _is_exempt(pod, image) else requirement
        manifest = choose_manifest(image.manifests, required)
        if manifest is None:
            start.reasons += (mismatch_message(image, text, required),)
        elif start.kernel or node.os != "windows":  # without a kernel build the choice is open
            start.manifests += ((text, manifest),)


def _is_exempt(pod: Pod, image: Image) -> bool:
    """Whether the build check is skipped: HostProcess containers accept any single manifest."""
    return pod.host_process and not image.is_index


def _constraint_mismatch(pod: Pod, node: Node, text: str) -> Reason | None:
    constraint = pod.platform_constraint
    if constraint.os and constraint.os != node.os:
        return _unstarted(
            Cause.OS, f"the pod's annotations require {constraint.os} images", subject=text
        )
    if constraint.architecture and constraint.architecture != node.architecture:
        return _unstarted(
            Cause.ARCHITECTURE,
            f"the pod's annotations require {constraint.architecture} images",
            subject=text,
        )
    return None


NO_MATCH_MESSAGE = "no match for platform in manifest: not found"
OS_MISMATCH_MESSAGE = "The container operating system does not match the host operating system."


def mismatch_message(image: Image, text: str, required: PlatformRequirement) -> Reason:
    """Explain why no manifest of the image fits: what is required and what the image has."""
    symptom = NO_MATCH_MESSAGE if image.is_index else OS_MISMATCH_MESSAGE
    for_os = [m for m in image.manifests if m.platform.os == required.os]
    has = ", ".join(sorted({_describe_platform(m.platform) for m in image.manifests}))
    if not for_os:
        message = f"{text} has no {required.os} image; it has {has}"
        return _unstarted(Cause.OS, message, symptom, text)
    if not any(matches_platform(m.platform, required) for m in for_os):
        message = f"{text} has no {required.os}/{required.architecture} image; it has {has}"
        return _unstarted(Cause.ARCHITECTURE, message, symptom, text)
    return _unstarted(Cause.BUILD, _build_mismatch(image, text, required), symptom, text)


def _describe_platform(platform: Platform) -> str:
    """`windows/amd64`, followed by the OS features it needs."""
    text = str(replace(platform, os_version=""))
    features = f" with {', '.join(platform.os_features)}" if platform.os_features else ""
    return text + features


def _build_mismatch(image: Image, text: str, required: PlatformRequirement) -> str:
    builds = image.builds(required.architecture)
    has = f"it has {', '.join(builds)}"
    if required.kernel is None:
        return f"{text} has no build {required.constraint}, which the pod requires; {has}"
    stated = [m.platform.build for m in image.manifests if m.platform.build]
    if all(build.base > required.kernel for build in stated):
        return f"{text} has no build ≤ {required.kernel}; {has}"
    within = f" within {required.constraint}, which the pod requires" if required.constraint else ""
    return f"{text} has no build {describe_accepted_builds(required.kernel)}{within}; {has}"

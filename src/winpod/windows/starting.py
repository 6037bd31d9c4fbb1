"""What the kubelet and the runtime of a node ask before a pod starts there.

Handler, isolation and image build are the questions that nobody asks before a node is chosen, so a
pod that fails one of them loops on that node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from winpod.windows.builds import Build
from winpod.windows.handlers import KNOWN, PROCESS, Handler, Handlers
from winpod.windows.isolation import Isolation, guest_fits_host, process_rule
from winpod.windows.objects import BUILD_LABEL, Node, Pod
from winpod.windows.platforms import Image, Manifest, Platform, Wanted, choose_manifest, matches
from winpod.windows.scheduling import Admitted
from winpod.windows.verdicts import Cause, Reason, Stage

Images = Mapping[str, Image]
"""What each image text of a pod turned out to be; a text that is absent could not be looked up."""

_OLDEST_WITH_PODS = 17763


@dataclass(slots=True)
class Start:
    handler: Handler | None = None
    kernel: Build | None = None
    reasons: tuple[Reason, ...] = ()
    unknown: tuple[Reason, ...] = ()
    manifests: tuple[tuple[str, Manifest], ...] = ()


def _unstarted(cause: Cause, sentence: str, symptom: str = "", about: str = "") -> Reason:
    return Reason(cause, Stage.START, sentence, symptom, about)


def start_on(admitted: Admitted, node: Node, images: Images, handlers: Handlers = KNOWN) -> Start:
    pod = admitted.pod
    start = Start()
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


def _start_on_windows(admitted: Admitted, node: Node, handlers: Handlers, start: Start) -> None:
    served = find_served_handler(admitted.handler, node, handlers)
    if served is None and node.handlers is None:
        sentence = (
            f'the node does not tell its handlers, and "{admitted.handler}" is not a known one'
        )
        start.unknown += (_unstarted(Cause.HANDLER, sentence, about=admitted.handler),)
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
                f"the node does not tell its Windows build (by a {BUILD_LABEL} label such as "
                "10.0.20348, or its kernel version)",
            ),
        )
        return
    start.kernel = served.kernel(host)
    start.reasons += tuple(_isolation_reasons(admitted.pod, served, node, host))


def find_served_handler(name: str, node: Node, handlers: Handlers) -> Handler | None:
    """The handler that a node's runtime runs under this name, None where it has none.

    A node that lists no handlers is not asked. The older names mean something to winpod's own
    runtime only; a name that the node lists and nobody knows is of the kind it begins with.
    """
    known = handlers.find(name)
    if name == "":
        return PROCESS
    if node.handlers is None:
        return known
    if node.runtime == "winpod" and known and known.name in node.handlers:
        return known
    return handlers.told(name) if name in node.handlers else None


def _missing_handler(name: str, node: Node) -> Reason:
    has = ", ".join(sorted(node.handlers or ())) or "not told"
    return _unstarted(
        Cause.HANDLER,
        f'the node\'s runtime has no handler "{name}" (handlers: {has})',
        f'FailedCreatePodSandBox: no runtime for "{name}" is configured',
        name,
    )


def _isolation_reasons(pod: Pod, handler: Handler, node: Node, host: Build) -> Iterable[Reason]:
    if host.number < _OLDEST_WITH_PODS:
        yield _unstarted(
            Cause.BUILD,
            f"{host.describe()} is too old for pods, which need 10.0.{_OLDEST_WITH_PODS}",
            "pod support is not available on Windows versions previous to RS5 (17763)",
        )
    if pod.host_process and node.runtime == "winpod":
        yield _unstarted(
            Cause.ISOLATION, "HostProcess containers need a Windows host to be part of"
        )
    if handler.isolation is Isolation.PROCESS:
        return
    if pod.host_process:
        yield _unstarted(
            Cause.ISOLATION,
            f"HostProcess containers run on the host, and {handler.name} puts them in a guest",
            "UVM does not support HostProcess containers",
        )
    guest = handler.kernel(host)
    if not guest_fits_host(guest, host):
        yield _unstarted(
            Cause.ISOLATION,
            f"a guest of build {guest} cannot run on the older {host.describe()}",
            about="guest",
        )
    elif node.runtime == "docker":
        yield _unstarted(Cause.ISOLATION, "Docker as a node's runtime has process isolation only")
    elif node.runtime == "containerd" and guest.base != host:
        yield _unstarted(
            Cause.ISOLATION,
            f"containerd chooses images by the node's own build {host}, so it has none for a "
            f"guest of build {guest}",
            "no match for platform in manifest: not found",
            "guest",
        )


def _choose_images(pod: Pod, node: Node, images: Images, start: Start) -> None:
    wanted = Wanted(
        os=node.os,
        architecture=node.architecture,
        kernel=start.kernel,
        narrowed_to=pod.narrowing.os_version,
    )
    for text in pod.images:
        image = images.get(text)
        if image is None:
            start.unknown += (
                _unstarted(Cause.IMAGE, f"what {text} is could not be found out", about=text),
            )
            continue
        if reason := _narrowed_away(pod, node, text):
            start.reasons += (reason,)
            continue
        asked = replace(wanted, kernel=None) if _is_exempt(pod, image) else wanted
        manifest = choose_manifest(image.manifests, asked)
        if manifest is None:
            start.reasons += (misfit(image, text, asked),)
        elif start.kernel or node.os != "windows":  # else the choice is not known
            start.manifests += ((text, manifest),)


def _is_exempt(pod: Pod, image: Image) -> bool:
    """A HostProcess container is a process of the host: only the choice from an index is bound."""
    return pod.host_process and not image.is_index


def _narrowed_away(pod: Pod, node: Node, text: str) -> Reason | None:
    asked = pod.narrowing
    if asked.os and asked.os != node.os:
        return _unstarted(Cause.OS, f"the pod's annotations ask for {asked.os} images", about=text)
    if asked.architecture and asked.architecture != node.architecture:
        return _unstarted(
            Cause.ARCHITECTURE,
            f"the pod's annotations ask for {asked.architecture} images",
            about=text,
        )
    return None


NO_MATCH = "no match for platform in manifest: not found"
MISMATCH = "The container operating system does not match the host operating system."


def misfit(image: Image, text: str, wanted: Wanted) -> Reason:
    """Why no manifest of an image is what is wanted: what it has, and what was needed."""
    symptom = NO_MATCH if image.is_index else MISMATCH
    for_os = [m for m in image.manifests if m.platform.os == wanted.os]
    has = ", ".join(sorted({_described(m.platform) for m in image.manifests}))
    if not for_os:
        sentence = f"{text} has no {wanted.os} image; it has {has}"
        return _unstarted(Cause.OS, sentence, symptom, text)
    if not any(matches(m.platform, wanted) for m in for_os):
        sentence = f"{text} has no {wanted.os}/{wanted.architecture} image; it has {has}"
        return _unstarted(Cause.ARCHITECTURE, sentence, symptom, text)
    return _unstarted(Cause.BUILD, _build_misfit(image, text, wanted), symptom, text)


def _described(platform: Platform) -> str:
    """`windows/amd64`, with what else it asks of a host."""
    text = str(replace(platform, os_version=""))
    features = f" with {', '.join(platform.os_features)}" if platform.os_features else ""
    return text + features


def _build_misfit(image: Image, text: str, wanted: Wanted) -> str:
    builds = image.builds(wanted.architecture)
    has = f"it has {', '.join(builds)}"
    if wanted.kernel is None:
        return f"{text} has no build {wanted.narrowed_to}, which the pod asks for; {has}"
    known = [m.platform.build for m in image.manifests if m.platform.build]
    if all(build.base > wanted.kernel for build in known):
        return f"{text} has no build ≤ {wanted.kernel}; {has}"
    asked = f" within {wanted.narrowed_to}, which the pod asks for" if wanted.narrowed_to else ""
    return f"{text} has no build {process_rule(wanted.kernel)}{asked}; {has}"

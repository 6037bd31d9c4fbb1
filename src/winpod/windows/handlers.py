"""Runtime handlers: those known without configuration, and those that a configuration adds.

A handler is an isolation and, under a hypervisor, a guest build; one that names no build has the
host's. A configured one may carry a size: annotations that count where a pod has none of that name.
Names are lowercase DNS labels, as the API demands of a RuntimeClass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from winpod.windows.builds import RELEASES, Build, Channel, parse_build
from winpod.windows.errors import InvalidInput, NotFound
from winpod.windows.guest_sizes import FLAGS, NUMBERS, wrong_value
from winpod.windows.isolation import Isolation
from winpod.windows.reading import At, InvalidField, Pairs

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Handler:
    name: str
    isolation: Isolation
    guest: Build | None = None
    annotations: Pairs = ()

    def kernel(self, host: Build) -> Build:
        """The build that containers meet: the guest's, or the host's where there is none."""
        return self.guest or host


class UnknownHandler(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(
            f'no runtime for "{name}" is configured.',
            f"Known handlers are {PROCESS.name}, {HYPERVISOR.name} and one for each guest build, "
            f"such as {HYPERVISOR.name}-17763.",
        )


@dataclass(frozen=True, slots=True)
class Handlers:
    """Handlers by their names. Aliases are older names; only winpod's own runtime knows them."""

    named: Mapping[str, Handler]
    aliases: Mapping[str, Handler]

    def __iter__(self) -> Iterator[Handler]:
        return iter(dict.fromkeys(self.named.values()))

    def find(self, name: str) -> Handler | None:
        return self.named.get(name) or self.aliases.get(name)

    def get(self, name: str) -> Handler:
        handler = self.find(name)
        if handler is None:
            raise UnknownHandler(name)
        return handler

    def told(self, name: str) -> Handler:
        """What a node has under a name: one that is not known here is of the kind it begins with.

        `runhcs-wcow-hypervisor-17763-reserve` is a size of `runhcs-wcow-hypervisor-17763`.
        """
        kind = self.named.get(self._kind(name), PROCESS)
        return self.find(name) or Handler(name, kind.isolation, kind.guest)

    def size(self, name: str) -> str:
        """What a name that is not known has beyond that of its kind: `reserve`."""
        return "" if self.find(name) else name.removeprefix(self._kind(name)).removeprefix("-")

    def _kind(self, name: str) -> str:
        begins = (known for known in self.named if name.startswith(f"{known}-"))
        return max(begins, key=len, default="")

    def configured(self, table: At) -> Handlers:
        """With the handlers of a configuration's table; one of a known name takes its place."""
        added = {name: _read_handler(name, table.get(name)) for name in table.names()}
        named = {name: added.get(h.name, h) for name, h in self.named.items()} | added
        aliases = {name: added.get(h.name, h) for name, h in self.aliases.items()}
        for name, handler in added.items():
            for alias in table.get(name, "aliases").items():
                if _dns_label(alias) in named:
                    raise InvalidField(
                        alias.path, f'is "{alias.text()}", which is a handler of its own'
                    )
                aliases[alias.text()] = handler
        return Handlers(named, aliases)


def _read_handler(name: str, table: At) -> Handler:
    table.allow("isolation", "guest_build", "aliases", "annotations")
    _dns_label(At(name, table.path))
    if not table.get("isolation"):
        raise InvalidField(table.get("isolation").path, "is required: process or hypervisor")
    isolation = Isolation(table.get("isolation").one_of(*Isolation))
    guest = table.get("guest_build")
    if guest and isolation is Isolation.PROCESS:
        raise InvalidField(guest.path, "is for hypervisor isolation; processes meet the host")
    sizes = _read_sizes(table.get("annotations"), isolation)
    return Handler(name, isolation, _read_build(guest).base if guest else None, sizes)


def _read_sizes(table: At, isolation: Isolation) -> Pairs:
    if table and isolation is Isolation.PROCESS:
        raise InvalidField(table.path, "are for hypervisor isolation; processes have no size")
    table.allow(*NUMBERS, *FLAGS)
    for name, text in table.pairs():
        if must_be := wrong_value(name, text):
            raise InvalidField((*table.path, name), f'is "{text}", and must be {must_be}')
    return table.pairs()


def _read_build(at: At) -> Build:
    try:
        return parse_build(at.text())
    except InvalidInput as error:
        raise InvalidField(at.path, f"is wrong: {str(error).rstrip('.')}") from None


def _dns_label(at: At) -> str:
    if not _LABEL.fullmatch(at.text()):
        raise InvalidField(
            at.path, f'has "{at.text()}", and a handler\'s name is of a-z, 0-9 and - only'
        )
    return at.text()


PROCESS = Handler("runhcs-wcow-process", Isolation.PROCESS)
HYPERVISOR = Handler("runhcs-wcow-hypervisor", Isolation.HYPERVISOR)


def hypervisor_for(guest: Build) -> Handler:
    return Handler(f"{HYPERVISOR.name}-{guest.number}", Isolation.HYPERVISOR, guest.base)


def _known() -> Handlers:
    named = {PROCESS.name: PROCESS, HYPERVISOR.name: HYPERVISOR}
    aliases = {"": PROCESS, "docker": PROCESS, "default": PROCESS}
    for release in RELEASES:
        if release.channel is Channel.CLIENT:
            continue
        handler = hypervisor_for(release.build)
        for suffix in (str(release.build.number), *release.aliases):
            named[f"{HYPERVISOR.name}-{suffix}"] = handler
            aliases[f"containerd-hyperv-{suffix}"] = handler
    return Handlers(named, aliases)


KNOWN = _known()

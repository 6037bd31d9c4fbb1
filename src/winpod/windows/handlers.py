"""Runtime handlers, built in and configured, and the annotations that size a pod's VM.

A handler is an isolation and, with hypervisor isolation, a guest build; the default is the host's.
A configured handler may set VM annotations as defaults for its pods. Names are lowercase DNS
labels, as the API requires of a RuntimeClass. The annotations are those of hcsshim, so a pod that
uses them behaves the same on Windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from winpod.errors import InvalidInput, NotFound
from winpod.field_reader import Field, InvalidField, TextPairs
from winpod.labels import (
    HYPERV_ALIAS_PREFIX,
    HYPERVISOR_HANDLER_NAME,
    HYPERVISOR_HANDLER_PREFIX,
    PROCESS_HANDLER_NAME,
)
from winpod.windows.builds import RELEASES, Build, ServicingChannel, parse_build
from winpod.windows.isolation import Isolation

VM_ANNOTATION_PREFIX = "io.microsoft.virtualmachine."
_TOPOLOGY = f"{VM_ANNOTATION_PREFIX}computetopology."

VM_MEMORY_MB = f"{_TOPOLOGY}memory.sizeinmb"
VM_PROCESSOR_COUNT = f"{_TOPOLOGY}processor.count"
VM_PROCESSOR_LIMIT = f"{_TOPOLOGY}processor.limit"
VM_PROCESSOR_WEIGHT = f"{_TOPOLOGY}processor.weight"
VM_STORAGE_BANDWIDTH = f"{VM_ANNOTATION_PREFIX}storageqos.bandwidthmaximum"
VM_STORAGE_IOPS = f"{VM_ANNOTATION_PREFIX}storageqos.iopsmaximum"
VM_NUMERIC_ANNOTATIONS = (
    VM_MEMORY_MB,
    VM_PROCESSOR_COUNT,
    VM_PROCESSOR_LIMIT,
    VM_PROCESSOR_WEIGHT,
    VM_STORAGE_BANDWIDTH,
    VM_STORAGE_IOPS,
)

VM_ALLOW_OVERCOMMIT = f"{_TOPOLOGY}memory.allowovercommit"
VM_PHYSICALLY_BACKED = f"{VM_ANNOTATION_PREFIX}fullyphysicallybacked"
VM_BOOLEAN_ANNOTATIONS = (VM_ALLOW_OVERCOMMIT, VM_PHYSICALLY_BACKED)


def invalid_annotation_reason(name: str, text: str) -> str:
    """Return what the value must be; empty if it is valid or the annotation is not used."""
    if name in VM_NUMERIC_ANNOTATIONS and not (text.isascii() and text.isdigit()):
        return "a number"
    if name in VM_BOOLEAN_ANNOTATIONS and text not in ("true", "false"):
        return "true or false"
    return ""


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Handler:
    name: str
    isolation: Isolation
    guest: Build | None = None
    annotations: TextPairs = ()

    def kernel_build(self, host: Build) -> Build:
        """The kernel build that containers run on: the guest's if set, else the host's."""
        return self.guest or host


class UnknownHandler(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(
            f'no runtime for "{name}" is configured.',
            f"Known handlers are {PROCESS_HANDLER.name}, {HYPERVISOR_HANDLER.name} "
            "and one for each guest build, "
            f"such as {HYPERVISOR_HANDLER.name}-17763.",
        )


@dataclass(frozen=True, slots=True)
class Handlers:
    """Handlers by name. Aliases are legacy names that only winpod's own runtime serves."""

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

    def resolve_advertised(self, name: str) -> Handler:
        """Return the handler a node advertises; an unknown one resolves by its longest prefix.

        `runhcs-wcow-hypervisor-17763-reserve` is a size of `runhcs-wcow-hypervisor-17763`.
        """
        base = self.named.get(self._base_name(name), PROCESS_HANDLER)
        return self.find(name) or Handler(name, base.isolation, base.guest)

    def size_suffix(self, name: str) -> str:
        """Return the part of an unknown name after its base handler: `reserve`."""
        return "" if self.find(name) else name.removeprefix(self._base_name(name)).removeprefix("-")

    def _base_name(self, name: str) -> str:
        prefixes = (handler for handler in self.named if name.startswith(f"{handler}-"))
        return max(prefixes, key=len, default="")

    def with_configuration(self, table: Field) -> Handlers:
        """Add the handlers of a configuration table; they override handlers of the same name."""
        added = {name: _read_handler(name, table.get(name)) for name in table.key_names()}
        named = {name: added.get(h.name, h) for name, h in self.named.items()} | added
        aliases = {name: added.get(h.name, h) for name, h in self.aliases.items()}
        for name, handler in added.items():
            for alias in table.get(name, "aliases").items():
                if _dns_label(alias) in named:
                    raise InvalidField(
                        alias.path, f'is "{alias.text()}", which is already a handler'
                    )
                aliases[alias.text()] = handler
        return Handlers(named, aliases)


def _read_handler(name: str, table: Field) -> Handler:
    table.reject_unknown_keys("isolation", "guest_build", "aliases", "annotations")
    _dns_label(Field(name, table.path))
    if not table.get("isolation"):
        raise InvalidField(table.get("isolation").path, "is required: process or hypervisor")
    isolation = Isolation(table.get("isolation").one_of(*Isolation))
    guest = table.get("guest_build")
    if guest and isolation is Isolation.PROCESS:
        raise InvalidField(
            guest.path, "is for hypervisor isolation; process isolation uses the host's build"
        )
    sizes = _read_sizes(table.get("annotations"), isolation)
    return Handler(name, isolation, _read_build(guest).base if guest else None, sizes)


def _read_sizes(table: Field, isolation: Isolation) -> TextPairs:
    if table and isolation is Isolation.PROCESS:
        raise InvalidField(
            table.path, "are for hypervisor isolation; process isolation has no VM to size"
        )
    table.reject_unknown_keys(*VM_NUMERIC_ANNOTATIONS, *VM_BOOLEAN_ANNOTATIONS)
    for name, text in table.text_map():
        if must_be := invalid_annotation_reason(name, text):
            raise InvalidField((*table.path, name), f'is "{text}", and must be {must_be}')
    return table.text_map()


def _read_build(field: Field) -> Build:
    try:
        return parse_build(field.text())
    except InvalidInput as error:
        raise InvalidField(field.path, f"is wrong: {str(error).rstrip('.')}") from None


def _dns_label(field: Field) -> str:
    if not _LABEL.fullmatch(field.text()):
        raise InvalidField(
            field.path, f'has "{field.text()}", but handler names only contain a-z, 0-9 and dashes'
        )
    return field.text()


PROCESS_HANDLER = Handler(PROCESS_HANDLER_NAME, Isolation.PROCESS)
HYPERVISOR_HANDLER = Handler(HYPERVISOR_HANDLER_NAME, Isolation.HYPERVISOR)


def hypervisor_handler(guest: Build) -> Handler:
    return Handler(f"{HYPERVISOR_HANDLER_PREFIX}{guest.number}", Isolation.HYPERVISOR, guest.base)


def _builtin_handlers() -> Handlers:
    named = {PROCESS_HANDLER.name: PROCESS_HANDLER, HYPERVISOR_HANDLER.name: HYPERVISOR_HANDLER}
    aliases = {"": PROCESS_HANDLER, "docker": PROCESS_HANDLER, "default": PROCESS_HANDLER}
    for release in RELEASES:
        if release.channel is ServicingChannel.CLIENT:
            continue
        handler = hypervisor_handler(release.build)
        for suffix in (str(release.build.number), *release.aliases):
            named[f"{HYPERVISOR_HANDLER_PREFIX}{suffix}"] = handler
            aliases[f"{HYPERV_ALIAS_PREFIX}{suffix}"] = handler
    return Handlers(named, aliases)


BUILTIN_HANDLERS = _builtin_handlers()

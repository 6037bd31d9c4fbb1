"""The objects of instances, which others change and delete at any moment."""

import ssl
from typing import Any

from winpod.cluster.custom_resources import Metadata
from winpod.instances.cluster.resource import Spec, Status, WindowsInstance
from winpod.instances.operator.objects import InstanceObjects
from winpod.node.access import Access
from winpod.node.api import ApiServer


def instance(version: str) -> WindowsInstance:
    metadata = Metadata(name="one", uid="1", resource_version=version)
    return WindowsInstance(metadata, Spec("192.0.2.1", "Administrator", 22, ""))


class SlowApi(ApiServer):
    """A stand-in whose answer comes after something was told of the object."""

    def __init__(self) -> None:
        super().__init__(Access("https://127.0.0.1:1", ssl.create_default_context()))
        self.objects = InstanceObjects(self, "system", lambda _: None)
        self.meanwhile: Any = None

    async def get(self, kind: Any, path: str) -> Any:
        del kind, path
        return instance("1")

    async def replace(self, path: str, body: Any) -> Any:
        del path
        self.meanwhile()
        body.metadata.resource_version = "2"
        return body


def note(status: Status) -> None:
    status.message = "noted"


async def test_one_that_goes_while_it_is_written_stays_gone() -> None:
    api = SlowApi()
    api.objects.changed(instance("1"))
    api.meanwhile = lambda: api.objects.deleted(instance("3"))
    await api.objects.save("one", note)
    assert api.objects.known == {}


async def test_what_is_told_while_it_is_written_is_not_taken_back() -> None:
    api = SlowApi()
    api.objects.changed(instance("1"))
    api.meanwhile = lambda: api.objects.changed(instance("3"))
    await api.objects.save("one", note)
    assert api.objects.known["one"].metadata.resource_version == "3"


async def test_what_was_written_is_known_at_once() -> None:
    api = SlowApi()
    api.objects.changed(instance("1"))
    api.meanwhile = lambda: None
    await api.objects.save("one", note)
    assert api.objects.known["one"].status.message == "noted"


async def test_one_that_has_gone_is_not_deleted_again() -> None:
    await SlowApi().objects.delete("one")

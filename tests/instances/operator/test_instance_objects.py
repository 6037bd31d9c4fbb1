"""Instance objects that other clients change and delete at any moment."""

import ssl
from typing import Any

from winpod.instances.cluster.resource import InstanceSpec, InstanceStatus, WindowsInstance
from winpod.instances.operator.instance_objects import InstanceStore
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.objects import ObjectMeta


def instance(version: str) -> WindowsInstance:
    metadata = ObjectMeta(name="one", uid="1", resource_version=version)
    return WindowsInstance(metadata, InstanceSpec("192.0.2.1", "Administrator", 22, ""))


class SlowApi(ApiClient):
    """A stand-in whose reply arrives after a watch event of the object."""

    def __init__(self) -> None:
        super().__init__(RestConfig("https://127.0.0.1:1", ssl.create_default_context()))
        self.objects = InstanceStore(self, "system", lambda _: None)
        self.meanwhile: Any = None

    async def get(self, kind: Any, path: str) -> Any:
        del kind, path
        return instance("1")

    async def replace(self, path: str, body: Any) -> Any:
        del path
        self.meanwhile()
        body.metadata.resource_version = "2"
        return body


def note(status: InstanceStatus) -> None:
    status.message = "noted"


async def test_object_deleted_during_a_write_stays_deleted() -> None:
    api = SlowApi()
    api.objects.on_change(instance("1"))
    api.meanwhile = lambda: api.objects.on_delete(instance("3"))
    await api.objects.save("one", note)
    assert api.objects.known == {}


async def test_newer_watch_event_during_a_write_is_kept() -> None:
    api = SlowApi()
    api.objects.on_change(instance("1"))
    api.meanwhile = lambda: api.objects.on_change(instance("3"))
    await api.objects.save("one", note)
    assert api.objects.known["one"].metadata.resource_version == "3"


async def test_written_object_is_cached_at_once() -> None:
    api = SlowApi()
    api.objects.on_change(instance("1"))
    api.meanwhile = lambda: None
    await api.objects.save("one", note)
    assert api.objects.known["one"].status.message == "noted"


async def test_missing_object_is_not_deleted_again() -> None:
    await SlowApi().objects.delete("one")

"""The generated models, and their base."""

import importlib
import pkgutil
from datetime import UTC, datetime

import msgspec
import pytest

from winpod.k8s import models
from winpod.k8s.models import core_v1, meta_v1
from winpod.k8s.objects import ApiStruct

_MODULES = [module.name for module in pkgutil.iter_modules(models.__path__)]


@pytest.mark.parametrize("name", _MODULES)
def test_types_of_all_fields_resolve(name: str) -> None:
    module = importlib.import_module(f"{models.__name__}.{name}")
    own = [kind for kind in vars(module).values() if isinstance(kind, type)]
    structs = [kind for kind in own if issubclass(kind, ApiStruct) and kind is not ApiStruct]
    assert all(msgspec.structs.fields(kind) for kind in structs)


def test_object_is_encoded_as_it_was_decoded_with_its_type() -> None:
    document = {
        "metadata": {"name": "web", "creationTimestamp": "2026-11-16T12:00:00Z"},
        "spec": {
            "containers": [{"name": "web", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    pod = core_v1.Pod.from_dict(document)
    assert pod.metadata
    assert pod.metadata.creationTimestamp == datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert pod.to_dict() == {"apiVersion": "v1", "kind": "Pod", **document}


def test_unknown_fields_are_ignored_and_wrong_types_rejected() -> None:
    assert core_v1.PodSpec.from_dict({"containers": [], "other": 1}).to_dict() == {"containers": []}
    with pytest.raises(msgspec.ValidationError, match=r"containers\[0\].name"):
        core_v1.PodSpec.from_dict({"containers": [{"name": 1}]})


def test_field_named_like_a_keyword_has_an_underscore() -> None:
    page = meta_v1.ListMeta.from_dict({"continue": "token"})
    assert page.continue_ == "token"
    assert page.to_dict() == {"continue": "token"}

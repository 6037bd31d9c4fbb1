"""ConfigMaps, Secrets, claims, services and tokens for the kubelet, from the object store."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from pathlib import Path
from typing import Any, TypeVar

from winpod.files import write_atomic
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.objects import ApiStruct
from winpod.k8s.pods import metadata_of
from winpod.placement.model import RuntimeClass
from winpod.play.apiserver.objects import Document, ObjectKey
from winpod.play.apiserver.store import ObjectStore, StoredObject

_Model = TypeVar("_Model", bound=ApiStruct)
_ISSUER = "https://kubernetes.default.svc.cluster.local"


def from_document(model: type[_Model], document: Document) -> _Model:
    return model.from_dict(document)


class StoredObjectSource:
    """Object source backed by the store.

    Tokens are signed with a key of this root; only its own pods can use them.
    """

    def __init__(self, records: ObjectStore, root: Path) -> None:
        self._records = records
        self._root = root

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        stored = self._records.get(ObjectKey("ConfigMap", namespace, name))
        return from_document(v1.ConfigMap, stored.document) if stored else None

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        stored = self._records.get(ObjectKey("Secret", namespace, name))
        return from_document(v1.Secret, _encoded(stored)) if stored else None

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None:
        stored = self._records.get(ObjectKey("PersistentVolumeClaim", namespace, name))
        return from_document(v1.PersistentVolumeClaim, stored.document) if stored else None

    async def volume(self, name: str) -> v1.PersistentVolume | None:
        stored = self._records.get(ObjectKey("PersistentVolume", "", name))
        return from_document(v1.PersistentVolume, stored.document) if stored else None

    async def services(self, namespace: str) -> list[v1.Service]:
        return [
            from_document(v1.Service, document)
            for document in self._records.list_kind("Service")
            if document["metadata"]["namespace"] == namespace
        ]

    async def runtime_handler(self, runtime_class: str) -> str | None:
        stored = self._records.get(ObjectKey("RuntimeClass", "", runtime_class))
        return RuntimeClass.from_object(stored.document).handler if stored else None

    async def node(self) -> v1.Node | None:
        return None

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        now = int(time.time())
        subject = f"system:serviceaccount:{namespace}:{service_account}"
        claims = {
            "aud": [audience or _ISSUER],
            "exp": now + seconds,
            "iat": now,
            "iss": _ISSUER,
            "sub": subject,
            "kubernetes.io": {
                "namespace": namespace,
                "pod": {"name": metadata_of(pod).name, "uid": metadata_of(pod).uid},
                "serviceaccount": {"name": service_account},
            },
        }
        payload = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        signature = hmac.new(_signing_key(self._root), payload.encode(), hashlib.sha256).digest()
        return f"{payload}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _signing_key(root: Path) -> bytes:
    path = root / "play/token.key"
    if not path.exists():
        write_atomic(path, secrets.token_bytes(32))
    return path.read_bytes()


def _base64(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _encoded(stored: StoredObject) -> Document:
    """Return a secret with `stringData` merged into `data`, as the API server does."""
    document = dict(stored.document)
    plain = document.pop("stringData", {})
    data = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
    document["data"] = {**document.get("data", {}), **data}
    return document

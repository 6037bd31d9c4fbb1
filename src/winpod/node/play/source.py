"""What the engine asks for, answered from the records: config maps, secrets, claims, services."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any, TypeVar, cast

from lightkube.models import core_v1 as v1

from winpod.node.play.objects import Document, Key
from winpod.node.play.records import Kept, Records
from winpod.node.requests import metadata_of
from winpod.windows.objects import RuntimeClass

_Model = TypeVar("_Model")
_ISSUER = "https://kubernetes.default.svc.cluster.local"


def typed(model: type[_Model], document: Document) -> _Model:
    return cast(_Model, cast(Any, model).from_dict(document))


class PlayObjects:
    """Tokens are signed with a key of this root: nobody but its own pods has a use for them."""

    def __init__(self, records: Records, root: Path) -> None:
        self._records = records
        self._root = root

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        found = self._records.get(Key("ConfigMap", namespace, name))
        return typed(v1.ConfigMap, found.document) if found else None

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        found = self._records.get(Key("Secret", namespace, name))
        return typed(v1.Secret, _encoded(found)) if found else None

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None:
        found = self._records.get(Key("PersistentVolumeClaim", namespace, name))
        return typed(v1.PersistentVolumeClaim, found.document) if found else None

    async def volume(self, name: str) -> v1.PersistentVolume | None:
        found = self._records.get(Key("PersistentVolume", "", name))
        return typed(v1.PersistentVolume, found.document) if found else None

    async def services(self, namespace: str) -> list[v1.Service]:
        return [
            typed(v1.Service, document)
            for document in self._records.of_kind("Service")
            if document["metadata"]["namespace"] == namespace
        ]

    async def runtime_handler(self, runtime_class: str) -> str | None:
        found = self._records.get(Key("RuntimeClass", "", runtime_class))
        return RuntimeClass.from_object(found.document).handler if found else None

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
        signed = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        mark = hmac.new(_signing_key(self._root), signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


def _signing_key(root: Path) -> bytes:
    file = root / "play/token.key"
    if not file.exists():
        new = file.with_suffix(f".{os.getpid()}")
        new.touch(0o600)
        new.write_bytes(secrets.token_bytes(32))
        new.replace(file)
    return file.read_bytes()


def _base64(told: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=").decode()


def _encoded(kept: Kept) -> Document:
    """A secret whose `stringData` has become data, as the API server does it."""
    document = dict(kept.document)
    plain = document.pop("stringData", {})
    data = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
    document["data"] = {**document.get("data", {}), **data}
    return document

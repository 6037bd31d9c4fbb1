"""Waiting for what is played: until every pod is ready, or done, or it is known why not."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import Any

from winpod.node.play.client import PlayClient
from winpod.node.play.objects import Key

WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.2
_STUCK = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_CALM_SECONDS = 1.0


async def until_settled(client: PlayClient, keys: Iterable[Key], seconds: float) -> dict[str, Any]:
    """The state in which nothing more is to be waited for, or that of the last moment."""
    wanted = list(keys)
    end = time.monotonic() + seconds
    calm_since = 0.0
    with _Line() as line:
        while True:
            state: dict[str, Any] = await client.get("state")
            moment = time.monotonic()
            if _is_settled(state, wanted):
                calm_since = calm_since or moment
                if moment - calm_since >= _CALM_SECONDS:
                    return state
            else:
                calm_since = 0.0
            if moment > end:
                return state
            line.show(state)
            await asyncio.sleep(_POLL_SECONDS)


def _is_settled(state: dict[str, Any], keys: list[Key]) -> bool:
    statuses = {(w["kind"], w["namespace"], w["name"]): w for w in state["workloads"]}
    for key in keys:
        status = statuses.get((key.kind, key.namespace, key.name))
        if status and not _is_complete(key, status, state):
            return False
    return all(_is_done(pod) for pod in state["pods"])


def _is_complete(key: Key, status: dict[str, Any], state: dict[str, Any]) -> bool:
    if key.kind == "CronJob":
        return True
    if key.kind == "Job":
        return bool(status.get("condition")) or _is_stuck(key, state)
    enough = status.get("readyReplicas") == status.get("replicas") == status.get("wanted")
    updated = status.get("updatedReplicas", status.get("wanted")) == status.get("wanted")
    return (enough and updated) or _is_stuck(key, state)


def _is_stuck(key: Key, state: dict[str, Any]) -> bool:
    own = [
        pod
        for pod in state["pods"]
        if (pod["namespace"], pod["owner"]) == (key.namespace, f"{key.kind}/{key.name}")
    ]
    return any(_cannot(pod) for pod in own)


def _cannot(pod: dict[str, Any]) -> bool:
    return bool(pod["against"]) or pod["state"].removeprefix("Init:") in _STUCK


def _is_done(pod: dict[str, Any]) -> bool:
    if pod["state"] == "Terminating":
        return False
    return pod["isReady"] or pod["phase"] in ("Succeeded", "Failed") or _cannot(pod)


class _Line:
    """A line that is written over, for people who watch."""

    def __init__(self) -> None:
        self._watched = sys.stderr.isatty()

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._watched:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, state: dict[str, Any]) -> None:
        if self._watched:
            waiting = [pod for pod in state["pods"] if not _is_done(pod)]
            named = ", ".join(f"{pod['name']} {pod['state']}" for pod in waiting[:3])
            text = f"waiting for {len(waiting)} pods: {named}"[:100]
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

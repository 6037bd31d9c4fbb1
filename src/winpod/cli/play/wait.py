"""Waiting until every pod of `winpod play` is ready, completed or stuck."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import Any

from winpod.placement.predicates import TERMINAL_PHASES
from winpod.play.apiserver.objects import ObjectKey
from winpod.play.client import PlayClient

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
_SETTLED_SECONDS = 1.0


async def wait_settled(
    client: PlayClient, keys: Iterable[ObjectKey], seconds: float
) -> dict[str, Any]:
    """Wait until the state is settled or the timeout expires; return the last state.

    The state must stay settled for a second, because controllers may still create pods.
    """
    objects = list(keys)
    end = time.monotonic() + seconds
    settled_since = 0.0
    with _ProgressLine() as line:
        while True:
            state: dict[str, Any] = await client.get("state")
            moment = time.monotonic()
            if _is_settled(state, objects):
                settled_since = settled_since or moment
                if moment - settled_since >= _SETTLED_SECONDS:
                    return state
            else:
                settled_since = 0.0
            if moment > end:
                return state
            line.show(state)
            await asyncio.sleep(_POLL_SECONDS)


def _is_settled(state: dict[str, Any], keys: list[ObjectKey]) -> bool:
    statuses = {(w["kind"], w["namespace"], w["name"]): w for w in state["workloads"]}
    for key in keys:
        status = statuses.get((key.kind, key.namespace, key.name))
        if status and not _is_complete(key, status, state):
            return False
    return all(_is_done(pod) for pod in state["pods"])


def _is_complete(key: ObjectKey, status: dict[str, Any], state: dict[str, Any]) -> bool:
    if key.kind == "CronJob":
        return True
    if key.kind == "Job":
        return bool(status.get("condition")) or _is_stuck(key, state)
    all_ready = status.get("readyReplicas") == status.get("replicas") == status.get("wanted")
    updated = status.get("updatedReplicas", status.get("wanted")) == status.get("wanted")
    return (all_ready and updated) or _is_stuck(key, state)


def _is_stuck(key: ObjectKey, state: dict[str, Any]) -> bool:
    pods = [
        pod
        for pod in state["pods"]
        if (pod["namespace"], pod["owner"]) == (key.namespace, f"{key.kind}/{key.name}")
    ]
    return any(_is_pod_stuck(pod) for pod in pods)


def _is_pod_stuck(pod: dict[str, Any]) -> bool:
    return bool(pod["against"]) or pod["state"].removeprefix("Init:") in _STUCK


def _is_done(pod: dict[str, Any]) -> bool:
    if pod["state"] == "Terminating":
        return False
    return pod["isReady"] or pod["phase"] in TERMINAL_PHASES or _is_pod_stuck(pod)


class _ProgressLine:
    """A progress line on stderr, rewritten in place if it is a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> _ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, state: dict[str, Any]) -> None:
        if self._is_terminal:
            waiting = [pod for pod in state["pods"] if not _is_done(pod)]
            named = ", ".join(f"{pod['name']} {pod['state']}" for pod in waiting[:3])
            text = f"waiting for {len(waiting)} pods: {named}"[:100]
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

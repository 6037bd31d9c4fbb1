"""Idle detection: a background server exits after a period without calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class IdleTracker(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts calls in progress, and other activity inside `track`."""

    def __init__(self) -> None:
        self._active = 0
        self._last_end = time.monotonic()

    @contextmanager
    def track(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._last_end = time.monotonic()

    async def wait_idle(self, seconds: float) -> None:
        """Wait until there was no activity for that long."""
        while (remaining := self._remaining(seconds)) > 0:  # noqa: ASYNC110 - the wait is the purpose
            await asyncio.sleep(remaining)

    def _remaining(self, seconds: float) -> float:
        idle = 0.0 if self._active else time.monotonic() - self._last_end
        return seconds - idle

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None  # type: ignore[return-value]
        serializers = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_stream:
            stream = self._counted_stream(handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(stream, *serializers)
        return grpc.unary_unary_rpc_method_handler(self._counted(handler.unary_unary), *serializers)

    def _counted(self, behaviour: Any) -> Any:
        async def counted(request: Any, context: Any) -> Any:
            with self.track():
                return await behaviour(request, context)

        return counted

    def _counted_stream(self, behaviour: Any) -> Any:
        async def counted(request: Any, context: Any) -> AsyncIterator[Any]:
            with self.track():
                async for message in behaviour(request, context):
                    yield message

        return counted

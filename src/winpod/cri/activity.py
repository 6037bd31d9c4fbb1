"""Whether a server is being used: one in the background ends when it has not been for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Activity(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts calls that are being answered, and whatever else is said to be going on."""

    def __init__(self) -> None:
        self._going_on = 0
        self._last_end = time.monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        self._going_on += 1
        try:
            yield
        finally:
            self._going_on -= 1
            self._last_end = time.monotonic()

    async def until_idle(self, seconds: float) -> None:
        """Until nothing has been going on for that long."""
        while (rest := self._rest(seconds)) > 0:  # noqa: ASYNC110 - the wait is the purpose
            await asyncio.sleep(rest)

    def _rest(self, seconds: float) -> float:
        quiet = 0.0 if self._going_on else time.monotonic() - self._last_end
        return seconds - quiet

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None  # type: ignore[return-value]
        forms = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_stream:
            stream = self._counted_stream(handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(stream, *forms)
        return grpc.unary_unary_rpc_method_handler(self._counted(handler.unary_unary), *forms)

    def _counted(self, behaviour: Any) -> Any:
        async def counted(request: Any, context: Any) -> Any:
            with self.one():
                return await behaviour(request, context)

        return counted

    def _counted_stream(self, behaviour: Any) -> Any:
        async def counted(request: Any, context: Any) -> AsyncIterator[Any]:
            with self.one():
                async for message in behaviour(request, context):
                    yield message

        return counted

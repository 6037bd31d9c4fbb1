"""gRPC server and client of the two CRI services, driven by the protobuf descriptor.

A service method is implemented by the function of the same name in snake case. Exceptions are
mapped to the gRPC status of their class, and their reason and hint are sent as trailing metadata.
No stubs are generated.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from winpod.cri.call_log import FindSubject, log_call
from winpod.cri.proto import api_pb2
from winpod.errors import Unavailable, WinpodError

RUNTIME: ServiceDescriptor = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"]
IMAGE: ServiceDescriptor = api_pb2.DESCRIPTOR.services_by_name["ImageService"]

MESSAGE_LIMIT = 16 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
)
_MAX_MESSAGE_BYTES, _MAX_HINT_BYTES = 2000, 400
_REASON, _HINT = "winpod-reason", "winpod-hint"
"""Trailing metadata of every error that this server returns. The hint is percent-encoded."""
_RECONNECT_MILLISECONDS = 1000
_NOT_CONNECTED = (
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.CONNECTING,
)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_log = logging.getLogger(__name__)


@cache
def function_name(method: str) -> str:
    """Convert a method name to snake case: `RunPodSandbox` to `run_pod_sandbox`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


class NotInitialized(Unavailable):
    """The server has not finished recovering its state."""

    def __init__(self) -> None:
        super().__init__("server is not initialized yet")


class MessageTooLarge(WinpodError):
    code = "RESOURCE_EXHAUSTED"

    def __init__(self, method: str) -> None:
        super().__init__(
            f"a message of {method} is larger than the limit of {MESSAGE_LIMIT >> 20} MiB.",
            "Use a filter, or the streaming variant of the call.",
        )


class Unimplemented(WinpodError):
    code = "UNIMPLEMENTED"

    def __init__(self, method: str) -> None:
        super().__init__(f"{method} is not implemented by this runtime.")


class CallTimedOut(WinpodError):
    code = "DEADLINE_EXCEEDED"


class DiskUnwritable(WinpodError):
    """A disk is full or read-only."""

    code = "RESOURCE_EXHAUSTED"


class FileUnusable(WinpodError):
    code = "FAILED_PRECONDITION"


class InternalError(WinpodError):
    """An unexpected exception, which is a bug."""

    code = "INTERNAL"


def new_server(*interceptors: grpc.aio.ServerInterceptor[Any, Any]) -> grpc.aio.Server:
    return grpc.aio.server(interceptors=interceptors, options=_OPTIONS)


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    *implementations: object,
    ready: Callable[[], bool] = lambda: True,
    find_subject: FindSubject = lambda _sandbox, _container: {},
) -> None:
    """Serve every method of the service with the first implementation that has it.

    Other methods are Unimplemented. Calls fail with NotInitialized until `ready` returns True.
    Every call is logged, with the fields that `find_subject` returns.
    """
    handlers = {}
    for method in service.methods:
        functions = (
            getattr(implementation, function_name(method.name), None)
            for implementation in implementations
        )
        dispatch = _Dispatch(method.name, next(filter(None, functions), None), ready, find_subject)
        handlers[method.name] = _handler(method, dispatch)
    generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
    server.add_generic_rpc_handlers((generic,))


_Context = grpc.aio.ServicerContext[Any, Any]


def _handler(method: MethodDescriptor, dispatch: _Dispatch) -> grpc.RpcMethodHandler[Any, Any]:
    request = GetMessageClass(method.input_type)
    method_handler: Any = grpc.unary_unary_rpc_method_handler
    behaviour: Any = dispatch.unary
    if method.server_streaming:
        method_handler, behaviour = grpc.unary_stream_rpc_method_handler, dispatch.stream
    handler: grpc.RpcMethodHandler[Any, Any] = method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    return handler


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """Calls the function of a method, logs the call, and returns its error to the client."""

    name: str
    function: Callable[[Message], Any] | None
    is_ready: Callable[[], bool]
    find_subject: FindSubject

    async def unary(self, request: Message, context: _Context) -> Message:
        with log_call(self.name, request, self.find_subject) as call:
            try:
                response: Message = await self._implementation()(request)
                if response.ByteSize() > MESSAGE_LIMIT:
                    raise MessageTooLarge(self.name)
            except Exception as error:
                call.error = _to_winpod_error(self.name, error)
                await _abort(call.error, context)
            call.response = response
            return response

    async def stream(self, request: Message, context: _Context) -> AsyncIterator[Message]:
        with log_call(self.name, request, self.find_subject) as call:
            try:
                async for message in self._implementation()(request):
                    yield message
            except Exception as error:
                call.error = _to_winpod_error(self.name, error)
                await _abort(call.error, context)

    def _implementation(self) -> Callable[[Message], Any]:
        if not self.is_ready():
            raise NotInitialized
        if self.function is None:
            raise Unimplemented(self.name)
        return self.function


async def _abort(failure: WinpodError, context: _Context) -> NoReturn:
    metadata = [(_REASON, failure.reason)]
    if failure.hint and len(failure.hint.encode()) <= _MAX_HINT_BYTES:
        metadata.append((_HINT, quote(failure.hint, safe=" !#$&'()*+,/:;=?@[]")))
    await context.abort(
        grpc.StatusCode[failure.code], _truncate(str(failure)), trailing_metadata=tuple(metadata)
    )


def _to_winpod_error(name: str, error: Exception) -> WinpodError:
    if isinstance(error, WinpodError):
        return error
    if isinstance(error, TimeoutError):
        return CallTimedOut(str(error) or f"{name} timed out.")
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        place = error.filename or "the disk"
        return DiskUnwritable(
            f"{name} failed at {place}: {error.strerror}.", "Free disk space and retry."
        )
    _log.error("%s failed", name, exc_info=error)
    if isinstance(error, OSError) and error.filename:
        return FileUnusable(f"{name} failed at {error.filename}: {error.strerror}.")
    return InternalError(f"{name} failed with an internal error, see the runtime's log: {error!r}.")


def _truncate(message: str) -> str:
    """Truncate a message: clients accept 8 KiB of headers, where a character may take 12 bytes."""
    text = message.encode()
    if len(text) <= _MAX_MESSAGE_BYTES:
        return message
    half = _MAX_MESSAGE_BYTES // 2
    return f"{text[:half].decode(errors='ignore')} ... {text[-half:].decode(errors='ignore')}"


class RemoteError(WinpodError):
    """Error returned by the server, with its gRPC status, reason and hint."""

    def __init__(
        self, status: grpc.StatusCode, message: str, hint: str = "", *, reason: str = ""
    ) -> None:
        super().__init__(message, hint, reason=reason)
        self.status = status


class ConnectionLost(RemoteError):
    """The server exited, or closed the connection, before it responded."""

    def __init__(self, target: str, details: str) -> None:
        super().__init__(
            grpc.StatusCode.UNAVAILABLE,
            f"the connection to the runtime at {target} was lost: {details}.",
        )


class CriClient:
    """CRI client: `await client.call("RunPodSandbox", request)`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._channel = grpc.aio.insecure_channel(
            target,
            options=(
                *_OPTIONS,
                ("grpc.default_authority", "localhost"),
                ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
            ),
        )
        self._methods = {m.name: (s, m) for s in (RUNTIME, IMAGE) for m in s.methods}

    async def call(self, name: str, request: Message) -> Any:
        service, method = self._methods[name]
        call = self._channel.unary_unary(
            f"/{service.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            return await call(request)
        except grpc.aio.AioRpcError as error:
            raise self._to_error(name, error) from error

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        service, method = self._methods[name]
        call = self._channel.unary_stream(
            f"/{service.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            async for message in call(request):
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._to_error(name, error) from error

    def _to_error(self, name: str, error: grpc.aio.AioRpcError) -> WinpodError:
        """Convert an error. Those without a reason are of gRPC itself, or of another runtime."""
        trailing: Any = error.trailing_metadata()  # an iterable of pairs
        metadata = dict(trailing or ())
        status, message = error.code(), error.details() or str(error.code())
        if reason := metadata.get(_REASON):
            hint = unquote(str(metadata.get(_HINT, "")))
            message = message.removesuffix(f" {hint}")
            return RemoteError(status, message, hint, reason=str(reason))
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            too_large = MessageTooLarge(name)
            return RemoteError(status, too_large.message, too_large.hint, reason=too_large.reason)
        if status is not grpc.StatusCode.UNAVAILABLE:
            return RemoteError(status, message)
        if self._channel.get_state() in _NOT_CONNECTED:
            return Unavailable(
                f"the runtime at {self._target} does not answer.", "Start it: winpod runtime."
            )
        return ConnectionLost(self._target, message)

    async def close(self) -> None:
        await self._channel.close(None)

"""The CRI's two services over gRPC, both ends, walked from the descriptor.

A method of a service is the function of the same name in snake case; what it raises becomes the
status that the error's class names. No stub is generated, so a call exists in one place only.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from winpod.cri.proto import api_pb2
from winpod.windows.errors import Unavailable, WinpodError

RUNTIME: ServiceDescriptor = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"]
IMAGE: ServiceDescriptor = api_pb2.DESCRIPTOR.services_by_name["ImageService"]

MESSAGE_LIMIT = 16 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
)
_LONGEST_SENTENCE = 2400
_RECONNECT_MILLISECONDS = 1000
_CUT_OFF = ("Stream removed", "Socket closed", "Connection reset")
"""What gRPC says of a server that is gone in the middle of a call."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_log = logging.getLogger(__name__)


def function_name(method: str) -> str:
    """`RunPodSandbox` is `run_pod_sandbox`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


class NotInitialized(Unavailable):
    """What an earlier process left is not settled yet."""

    def __init__(self) -> None:
        super().__init__("server is not initialized yet")


class TooLarge(WinpodError):
    code = "RESOURCE_EXHAUSTED"

    def __init__(self, method: str) -> None:
        super().__init__(
            f"a message of {method} is larger than the limit of {MESSAGE_LIMIT >> 20} MiB.",
            "Ask for less: lists have filters, and calls that stream them.",
        )


class Unimplemented(WinpodError):
    code = "UNIMPLEMENTED"

    def __init__(self, method: str) -> None:
        super().__init__(f"{method} is not something this runtime does.")


def new_server(*interceptors: grpc.aio.ServerInterceptor[Any, Any]) -> grpc.aio.Server:
    return grpc.aio.server(interceptors=interceptors, options=_OPTIONS)


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    *implementations: object,
    ready: Callable[[], bool] = lambda: True,
) -> None:
    """Serve every method of the service, by the first that has it; else it is Unimplemented.

    Until it is ready, every call is told so.
    """
    handlers = {}
    for method in service.methods:
        found = (getattr(one, function_name(method.name), None) for one in implementations)
        handlers[method.name] = _handler(method, next(filter(None, found), None), ready)
    generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
    server.add_generic_rpc_handlers((generic,))


_Context = grpc.aio.ServicerContext[Any, Any]


def _handler(
    method: MethodDescriptor, function: Any, ready: Callable[[], bool]
) -> grpc.RpcMethodHandler[Any, Any]:
    request = GetMessageClass(method.input_type)
    make: Any = grpc.unary_unary_rpc_method_handler
    behaviour: Any = partial(_answer, method.name, function, ready)
    if method.server_streaming:
        make, behaviour = (
            grpc.unary_stream_rpc_method_handler,
            partial(_stream, method.name, function, ready),
        )
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    return handler


async def _answer(
    name: str,
    function: Callable[[Message], Awaitable[Message]] | None,
    ready: Callable[[], bool],
    request: Message,
    context: _Context,
) -> Message:
    try:
        if not ready():
            raise NotInitialized
        if function is None:
            raise Unimplemented(name)
        answer = await function(request)
        if answer.ByteSize() > MESSAGE_LIMIT:
            raise TooLarge(name)
        return answer
    except Exception as error:
        await _refuse(name, error, context)


async def _stream(
    name: str,
    function: Callable[[Message], AsyncIterator[Message]] | None,
    ready: Callable[[], bool],
    request: Message,
    context: _Context,
) -> AsyncIterator[Message]:
    try:
        if not ready():
            raise NotInitialized
        if function is None:
            raise Unimplemented(name)
        async for message in function(request):
            yield message
    except Exception as error:
        await _refuse(name, error, context)


async def _refuse(name: str, error: Exception, context: _Context) -> NoReturn:
    if isinstance(error, WinpodError):
        code, sentence = grpc.StatusCode[error.code], str(error)
    elif isinstance(error, TimeoutError):
        code, sentence = grpc.StatusCode.DEADLINE_EXCEEDED, str(error) or f"{name} took too long."
    elif isinstance(error, OSError) and error.errno in _DISK:
        code, why = grpc.StatusCode.RESOURCE_EXHAUSTED, error.strerror
        sentence = (
            f"{name} failed at {error.filename or 'the disk'}: {why}. Make room, and try again."
        )
    elif isinstance(error, OSError) and error.filename:
        _log.exception("%s failed", name)
        code = grpc.StatusCode.FAILED_PRECONDITION
        sentence = f"{name} failed at {error.filename}: {error.strerror}."
    else:
        _log.exception("%s failed", name)
        code = grpc.StatusCode.INTERNAL
        sentence = f"{name} failed for a reason that the runtime's log tells: {error!r}."
    await context.abort(code, _shortened(sentence))


def _shortened(sentence: str) -> str:
    """Clients take a status of 8 KiB, in which some characters need twelve bytes."""
    text = sentence.encode()
    if len(text) <= _LONGEST_SENTENCE:
        return sentence
    half = _LONGEST_SENTENCE // 2
    return f"{text[:half].decode(errors='ignore')} ... {text[-half:].decode(errors='ignore')}"


class RemoteError(WinpodError):
    """What the other side answered instead of a response; `status` is its gRPC status."""

    def __init__(self, status: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """The other end: `await client.call("RunPodSandbox", request)`."""

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
            raise self._told(name, error) from error

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
            raise self._told(name, error) from error

    def _told(self, name: str, error: grpc.aio.AioRpcError) -> WinpodError:
        if error.code() is grpc.StatusCode.UNAVAILABLE and not _is_ours(error):
            return Unavailable(
                f"the runtime at {self._target} does not answer.", "Start it: winpod runtime."
            )
        sentence = error.details() or str(error.code())
        if "message larger than max" in sentence:
            sentence = str(TooLarge(name))
        if any(word in sentence for word in _CUT_OFF):
            sentence = f"the runtime at {self._target} ended before it answered."
        return RemoteError(error.code(), sentence)

    async def close(self) -> None:
        await self._channel.close(None)


def _is_ours(error: grpc.aio.AioRpcError) -> bool:
    """Whether the server said it, or gRPC itself because there is no server."""
    return "failed to connect" not in (error.details() or "")

from collections.abc import AsyncIterator

import pytest

from tests.support.streaming_backend import LocalBackend
from winpod.cri.streaming import StreamingServer


@pytest.fixture
def backend() -> LocalBackend:
    return LocalBackend()


@pytest.fixture
async def server(backend: LocalBackend) -> AsyncIterator[StreamingServer]:
    server = StreamingServer(backend)
    await server.start()
    yield server
    await server.close()

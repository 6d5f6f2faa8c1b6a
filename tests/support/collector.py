"""An OTLP collector on loopback: takes spans over HTTP as real ones do, or answers as a broken one does."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What came. `status` is what it answers; `hangs` makes it answer nothing."""

    port: int = 0
    status: int = 200
    hangs: bool = False
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    raw: list[bytes] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[Span]:
        """The spans of that name."""
        return [span for span in self.spans if span.name == name]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while request_line := await reader.readline():
                headers = {}
                while (line := await reader.readline()).strip():
                    name, _, value = line.partition(b":")
                    headers[name.strip().lower()] = value.strip()
                body = await reader.readexactly(int(headers[b"content-length"]))
                self.paths.append(request_line.split()[1])
                self.headers.append(headers)
                self._take(gzip.decompress(body) if headers.get(b"content-encoding") == b"gzip" else body)
                if self.hangs:
                    await asyncio.sleep(3600)
                answer = ExportTraceServiceResponse().SerializeToString()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (self.status, len(answer), answer))
                await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def _take(self, body: bytes) -> None:
        self.raw.append(body)
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource |= attributes(resource_spans.resource)
            for scope_spans in resource_spans.scope_spans:
                self.spans += scope_spans.spans


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span, event or resource."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


@asynccontextmanager
async def collector(*, status: int = 200, hangs: bool = False) -> AsyncIterator[Collector]:
    """A collector that listens on a free port."""
    taker, tasks = Collector(status=status, hangs=hangs), set[asyncio.Task[None]]()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(taker.serve(reader, writer), name="kit collector")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    taker.port = server.sockets[0].getsockname()[1]
    try:
        yield taker
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

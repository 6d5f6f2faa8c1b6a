"""Times what the gateway itself does for one plain exchange and for one streamed chunk: no sockets, no kernel.

Run it with the Python of an environment to measure what is installed there, interpreted or compiled:

    .venv/bin/python benchmarks/exchange_time.py
    .bench/peers/poise/bin/python benchmarks/exchange_time.py
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from random import Random
from typing import Any, cast

from poise.core.replica import ReplicaAddress, ReplicaSpec
from poise.fleet.fleet import Fleet
from poise.proxy import exchange as exchange_module
from poise.proxy.client import ClientConnection
from poise.proxy.data_path import DataPath
from poise.proxy.request_log import RequestLog
from poise.proxy.settings import DataPathSettings
from poise.proxy.upstream import UpstreamConnection
from poise.routing.registry import make_policy

REPLICAS = 8
CALLS, REPEATS = 1000, 60

PROMPT = "You are helpful. " + "lorem ipsum dolor sit amet " * 20
ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello there"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
}
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" token token tok"},"logprobs":null,"finish_reason":null}]}\n\n'
)


class NullTransport:
    """Takes what is written and throws it away."""

    def __init__(self) -> None:
        self._pair = socket.socketpair()

    def write(self, data: bytes) -> None:
        """Nothing."""

    def is_closing(self) -> bool:
        """Never."""
        return False

    def get_extra_info(self, name: str) -> socket.socket:
        """A socket to poll."""
        return self._pair[0]


def request(*, stream: bool) -> bytes:
    """A chat request of some 700 bytes."""
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "Tell me a story"}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 64, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def plain_answer() -> bytes:
    """A whole answer, as it comes in one read."""
    body = json.dumps(ANSWER).encode()
    head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def best_us(call: Callable[[], object]) -> float:
    """Least mean time of a call in microseconds: the machine disturbs upwards only."""
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - began)
    return best / CALLS * 1e6


async def measure() -> None:
    """Print both times."""
    fleet = Fleet()
    for number in range(1, REPLICAS + 1):
        fleet.join(ReplicaSpec(f"r{number}", ReplicaAddress("127.0.0.1", number)))
    log = RequestLog("/dev/null")
    path = DataPath(DataPathSettings(), fleet, make_policy("soft_affinity", {}, Random(0)), log=log)
    idle: dict[Any, UpstreamConnection] = {}
    for replica in fleet:
        upstream = UpstreamConnection(path.connections(replica))
        upstream.connection_made(cast("asyncio.BaseTransport", NullTransport()))
        upstream.connections.give_back(upstream)
        idle[replica] = upstream
    client = ClientConnection(path)
    client.connection_made(cast("asyncio.BaseTransport", NullTransport()))

    def busy() -> UpstreamConnection:
        return next(upstream for upstream in idle.values() if upstream.exchange is not None)

    plain, answer = request(stream=False), plain_answer()
    client.data_received(plain)
    home = busy()  # one conversation: it stays at home
    home.data_received(answer)

    def exchange() -> None:
        client.data_received(plain)
        home.data_received(answer)

    print(f"{best_us(exchange):6.2f} us for a plain exchange")
    client.data_received(request(stream=True))
    stream = busy()
    stream.data_received(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    print(f"{best_us(lambda: stream.data_received(chunk)):6.2f} us for a streamed chunk of {len(EVENT)} bytes")
    print("compiled" if not (exchange_module.__file__ or "").endswith(".py") else "interpreted")
    log.close()


if __name__ == "__main__":
    asyncio.run(measure())

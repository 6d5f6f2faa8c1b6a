"""Plain HTTP for what the `openai` client does not speak, and waiting with a deadline."""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

LONG_ANSWER_TOKENS = 8000  # eight seconds of a replica that has nothing else to do


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False
    """The connection ended before the body did."""

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [line.removeprefix("data: ") for line in self.body.decode().splitlines() if line.startswith("data: ")]


def call(url: str, body: object = None, headers: Mapping[str, str] | None = None, timeout_s: float = 60) -> Answer:
    """GET `url`, or POST `body` to it as JSON, on a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    try:
        if body is None:
            connection.request("GET", parts.path, headers=dict(headers or {}))
        else:
            payload = json.dumps(body).encode()
            connection.request("POST", parts.path, payload, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Answer(response.status, received, response.read())
        except http.client.IncompleteRead as error:
            return Answer(response.status, received, error.partial, is_cut=True)
    finally:
        connection.close()


def chat_body(content: str, max_tokens: int, **fields: object) -> dict[str, object]:
    """The body of a chat request whose answer has exactly `max_tokens` tokens."""
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, **fields}


@contextmanager
def held_streams(url: str, count: int) -> Iterator[None]:
    """Keep `count` streams of chat open, unread, for the length of the block, then leave them all."""
    connections = [http.client.HTTPConnection(urlsplit(url).netloc, timeout=60) for _ in range(count)]
    try:
        for number, connection in enumerate(connections):
            payload = json.dumps(chat_body(f"Stream {number}", LONG_ANSWER_TOKENS, stream=True))
            connection.request("POST", "/v1/chat/completions", payload, {"content-type": "application/json"})
        yield
    finally:
        for connection in connections:
            connection.close()


def wait_until(condition: Callable[[], object], within_s: float, what: str) -> None:
    """Return once `condition()` is true; fail, saying `what` was awaited, when it is not within `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)

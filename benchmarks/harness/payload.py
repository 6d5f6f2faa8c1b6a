"""The requests that the load tools send, as raw HTTP; `@SEQUENCE` in them is numbered by the tools."""

import json
from pathlib import Path

KEY = "sk-bench"
MODEL = "tiny"
SEQUENCE = "@SEQUENCE"

_FILLER = "The quick brown fox jumps over the lazy dog and wonders what a token is. "


def chat_request(*, stream: bool, body_bytes: int = 700, steer: str = "") -> bytes:
    """A chat request with a body of about `body_bytes`, in a session and with a prompt of its own for each number.

    `steer` is text for the stub engine, such as "gap_us=0 chunks=1000".
    """
    body = json.dumps(_body(stream, "", steer), separators=(",", ":"))
    filler = (_FILLER * (body_bytes // len(_FILLER) + 1))[: max(0, body_bytes - len(body))]
    body = json.dumps(_body(stream, filler, steer), separators=(",", ":"))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        "User-Agent: OpenAI/Python 1.54.0\r\n"
        "Accept: application/json\r\n"
        "Content-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\n"
        f"X-Session-ID: conversation-{SEQUENCE}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def _body(stream: bool, filler: str, steer: str) -> dict[str, object]:
    question = f"Question {SEQUENCE}: {filler}{steer}"
    messages = [
        {"role": "system", "content": f"You are the helpful assistant of tenant {SEQUENCE}."},
        {"role": "user", "content": question},
    ]
    body: dict[str, object] = {"model": MODEL, "messages": messages, "max_tokens": 64, "temperature": 0.7}
    return body | {"stream": True} if stream else body


def write_request(path: Path, request: bytes) -> Path:
    """Writes a request for a load tool and returns where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(request)
    return path

"""Random exchanges that caller and replica both know by their seed, so that each can check what the other sent."""

from dataclasses import dataclass
from random import Random

from support.apis import DONE, chat_event
from support.http_bytes import LAST_CHUNK, answer, cuts, head, request

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/v1/audio/transcriptions")
AWKWARD = (b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"\n\n", b"data: [DONE]\n\n", b"HTTP/1.1 200 OK\r\n", b"\xe4")


def random_cuts(data: bytes, random: Random) -> list[bytes]:
    """`data` cut at up to eight places, more of them near its beginning, where heads are."""
    places = [random.randrange(len(data)) for _ in range(random.randrange(5))]
    places += [random.randrange(min(len(data), 300)) for _ in range(random.randrange(4))]
    return cuts(data, *places)


def random_body(random: Random) -> bytes:
    """Any bytes, with what might be taken for framing among them; mostly short, some of many reads."""
    size = random.choice((0, 1, 20, 300, 3000, 3000, 3000, 70_000)) if random.random() < 0.9 else 300_000
    parts = [random.randbytes(random.randrange(size + 1))]
    parts += [random.choice(AWKWARD) for _ in range(random.randrange(4))]
    random.shuffle(parts)
    return b"".join(parts)


def random_pieces(data: bytes, random: Random) -> list[bytes]:
    """`data` in up to 20 pieces."""
    return cuts(data, *(random.randrange(len(data)) for _ in range(random.randrange(20)))) if data else []


def random_stream(random: Random) -> bytes:
    """A whole chat stream of some events."""
    texts = ("a", "中文", "🙂", "[DONE]", "data: x", '"finish_reason":"abort"', "x" * 5000)
    events = [chat_event({"content": random.choice(texts)}) for _ in range(random.randrange(1, 12))]
    comments = [b": note\n\n" for _ in range(random.randrange(3))]
    random.shuffle(events)
    return b"".join((*comments, *events, chat_event({}, "stop"), DONE))


@dataclass(frozen=True)
class FuzzedExchange:
    """One request and its answer, whole and as they are to be written."""

    seed: int
    request_body: bytes
    request_parts: list[bytes]
    status: int
    answer_body: bytes
    answer_parts: list[bytes]
    ends_with_close: bool


def fuzzed_exchange(seed: int) -> FuzzedExchange:
    """The exchange of `seed`."""
    random = Random(seed)
    body = random_body(random)
    path = random.choice(PATHS)
    headers = [("X-Seed", str(seed)), ("X-Filler", "f" * random.randrange(400))]
    sent_body: bytes | list[bytes] = body if random.random() < 0.5 else random_pieces(body, random)
    whole_request = request(path, sent_body, headers=headers)
    stream = path == PATHS[0] and random.random() < 0.6
    answer_body = random_stream(random) if stream else random_body(random)
    status = 200 if stream else random.choice((200, 200, 200, 201, 400, 404, 422, 500))
    framing = random.choice(("length", "chunked", "chunked", "close"))
    content_type = "text/event-stream" if stream else random.choice(("application/json", "audio/mpeg"))
    if framing == "chunked":
        pieces = random_pieces(answer_body, random)
        whole_answer = answer(status, pieces, content_type=content_type)
    else:
        whole_answer = answer(status, answer_body, content_type=content_type, until_close=framing == "close")
    return FuzzedExchange(
        seed, body, random_cuts(whole_request, random), status, answer_body, random_cuts(whole_answer, random),
        framing == "close",
    )  # fmt: skip


def odd_chunks(pieces: list[bytes], random: Random) -> bytes:
    """The pieces in chunks that are legal but unusual: extensions, capital and padded sizes, a trailer."""
    framed = b""
    for piece in pieces:
        size = random.choice((b"%x", b"%X", b"000%x")) % len(piece)
        framed += size + random.choice((b"", b";name", b';name="a;b"', b";a=1;b=2")) + b"\r\n" + piece + b"\r\n"
    return framed + random.choice((LAST_CHUNK, b"00\r\n\r\n", b"0;last\r\n\r\n", b"0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"))


def chunked_head(target: str) -> bytes:
    """A request's head that announces chunks."""
    return head(f"POST {target} HTTP/1.1", [("Host", "x"), ("Transfer-Encoding", "chunked")])

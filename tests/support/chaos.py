"""Requests whose answers are a function of their seed, and replicas that come to harm while they answer them."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from support.apis import DONE, chat_event, data
from support.http_bytes import STREAM_HEAD, answer, chunk, request, to_json
from support.scripted_replica import Exchange, ScriptedReplica
from support.wire import Wire

TEXTS = ("a", "中文", "🙂🙂", "[DONE]", "data: x", "x" * 900, '"finish_reason":"abort"')
KEYS = ("sk-one", "sk-two", "sk-few")
ABORTED = chat_event({}, "abort")
MODELS = to_json({"object": "list", "data": [{"id": "m", "object": "model"}]})


class ChaosRequest:
    """The request of `seed`: what is sent, what is right to come back, and whether and when its caller hangs up.

    Even ones have an idempotency key, and some odd ones are the one before sent again; `origin` is the seed that the
    replica is shown.
    """

    def __init__(self, seed: int) -> None:
        again = seed % 2 == 1 and Random(seed).random() < 0.2
        self.seed = seed
        self.origin = seed - 1 if again else seed
        random = Random(self.origin)
        self.stream = random.random() < 0.6
        self.id = f"chaos-{seed}"
        filler = random.choice(TEXTS) * random.choice((1, 1, 1, 50))
        self.body = to_json(
            {
                "model": "m",
                "stream": self.stream,
                "seed": self.origin,
                "messages": [{"role": "user", "content": filler}],
            }
        )
        events = [chat_event({"content": random.choice(TEXTS)}) for _ in range(random.randrange(1, 10))]
        self.events = [*events, chat_event({}, "stop"), DONE]
        choice = {"index": 0, "message": {"content": random.choice(TEXTS) * 9}, "finish_reason": "stop"}
        self.plain = to_json({"id": f"c-{self.origin}", "object": "chat.completion", "model": "m", "choices": [choice]})
        self.headers = [("X-Request-Id", self.id), ("Authorization", f"Bearer {random.choice(KEYS)}")]
        if self.origin % 2 == 0:
            self.headers.append(("Idempotency-Key", f"key-{self.origin}"))
        random = Random(-1 - seed)
        self.hangs_up_after_bytes = random.choice((0, 0, 1, 300, 1500)) if random.random() < 0.2 else None
        self.pause_s = random.random() * 0.02
        if random.random() < 0.2:
            self.headers.append(("X-Poise-Priority", str(random.randrange(-3, 4))))

    @property
    def whole(self) -> bytes:
        """The right body."""
        return b"".join(self.events) if self.stream else self.plain

    @property
    def sent(self) -> bytes:
        """The request's bytes."""
        return request(body=self.body, headers=self.headers)


class ChaosReplica(ScriptedReplica):
    """Answers `ChaosRequest`s in the way of `mode`, one of `MODES`; may be killed, and started again on its port."""

    def __init__(self, random: Random) -> None:
        super().__init__(self._answer_by_mode)
        self.mode = "well"
        self.port = 0
        self.received: Counter[int] = Counter()
        """How often each seed has come."""
        self._random = random

    async def set_mode(self, mode: str) -> None:
        """Come to harm, or recover."""
        if mode == "dead":
            self._server.close()
            for wire in self.wires:
                wire.reset()
        elif self.mode == "dead":
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Wire(self._connected), "127.0.0.1", self.port, backlog=2048
            )
        self.mode = mode

    async def _answer_by_mode(self, exchange: Exchange) -> None:
        if exchange.target == b"/v1/chat/completions":
            wanted = ChaosRequest(json.loads(exchange.body)["seed"])
            assert exchange.body == wanted.body, f"the request of seed {wanted.seed} was altered"
            assert exchange.head.value("x-request-id") in (wanted.id.encode(), b"chaos-%d" % (wanted.seed + 1))
            self.received[wanted.seed] += 1
            await MODES[self.mode](exchange, wanted, self._random)
        elif self.mode == "frozen":
            await exchange.hang()
        else:
            pages = {b"/v1/models": answer(200, MODELS), b"/health": answer(200, b"")}
            await exchange.write(pages.get(exchange.target, answer(404, b"{}")))


async def _well(exchange: Exchange, wanted: ChaosRequest, random: Random) -> None:
    if wanted.stream:
        await exchange.write(STREAM_HEAD, *map(chunk, wanted.events), b"0\r\n\r\n")
    else:
        await exchange.write(answer(200, wanted.plain))


async def _slow(exchange: Exchange, wanted: ChaosRequest, random: Random) -> None:
    parts = [STREAM_HEAD, *map(chunk, wanted.events), b"0\r\n\r\n"] if wanted.stream else [answer(200, wanted.plain)]
    for part in parts:
        await asyncio.sleep(random.random() * 0.15)
        await exchange.write(part)


async def _frozen(exchange: Exchange, wanted: ChaosRequest, random: Random) -> None:
    if wanted.stream and random.random() < 0.5:
        await exchange.write(STREAM_HEAD, *map(chunk, wanted.events[: random.randrange(len(wanted.events))]))
    await exchange.hang()


async def _breaks(exchange: Exchange, wanted: ChaosRequest, random: Random) -> None:
    whole = STREAM_HEAD + b"".join(map(chunk, wanted.events)) if wanted.stream else answer(200, wanted.plain)
    await exchange.write(whole[: random.randrange(len(whole))])
    random.choice((exchange.fin, exchange.reset))()


async def _refuses(exchange: Exchange, wanted: ChaosRequest, random: Random) -> None:
    error = {"error": {"message": "the engine is busy", "type": "Service Unavailable", "code": 503}}
    if wanted.stream and random.random() < 0.7:
        await exchange.write(STREAM_HEAD, chunk(data(error)), chunk(DONE), b"0\r\n\r\n")
    else:
        await exchange.write(answer(503, to_json(error)))


async def _ends_early(exchange: Exchange, wanted: ChaosRequest, random: Random) -> None:
    """Ends in good form, but without the end: what an engine does that is shut down."""
    if wanted.stream:
        some = wanted.events[: random.randrange(len(wanted.events) - 1)]
        last = random.choice(([], [DONE], [ABORTED, DONE]))
        await exchange.write(STREAM_HEAD, *map(chunk, [*some, *last]), b"0\r\n\r\n")
    else:
        aborted = wanted.plain.replace(b'"finish_reason":"stop"', b'"finish_reason":"abort"')
        await exchange.write(answer(200, aborted))


MODES: dict[str, Callable[[Exchange, ChaosRequest, Random], Awaitable[None]]] = {
    "well": _well, "slow": _slow, "frozen": _frozen, "breaks": _breaks, "refuses": _refuses, "ends early": _ends_early,
    "dead": _breaks,
}  # fmt: skip

"""Ready-made scripts for `ScriptedReplica`, and ways to combine them."""

from collections.abc import Awaitable, Callable, Sequence

from support.apis import CHAT, Api
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, answer, chunk, to_json
from support.scripted_replica import Exchange, Script


def writes(*parts: bytes, then: Callable[[Exchange], object] | None = None) -> Script:
    """Write the parts, each in a write of its own; then, if given, `Exchange.fin` or `Exchange.reset`."""

    async def script(exchange: Exchange) -> None:
        status = b"".join(parts[:13]).split(b" ", 2)[1] if parts else b"nothing"
        exchange.replica.note(f"says {status.decode('latin-1')}")
        await exchange.write(*parts)
        if then is not None:
            then(exchange)

    return script


def answers(status: int = 200, value: object = None) -> Script:
    """A JSON answer, by default a whole chat answer."""
    return writes(answer(status, to_json(CHAT.plain if value is None else value)))


def answers_error(status: int, message: str = "the engine's own words") -> Script:
    """An error as vLLM words it."""
    return answers(status, {"error": {"message": message, "type": "SomeError", "param": None, "code": status}})


def streams(*events: bytes, api: Api = CHAT, then: Callable[[Exchange], object] | None = None) -> Script:
    """A stream, head first, each event in a chunk and a write of its own; by default a whole one of `api`.

    With `then` (`Exchange.fin`, `Exchange.reset`, `Exchange.hang`) the last chunk is left out.
    """

    async def script(exchange: Exchange) -> None:
        exchange.replica.note("streams")
        await exchange.write(STREAM_HEAD, *(chunk(event) for event in events or api.events))
        if then is None:
            await exchange.write(LAST_CHUNK)
        else:
            result = then(exchange)
            if isinstance(result, Awaitable):
                await result

    return script


def engine(chat: Script, *, health: Script | None = None) -> Script:
    """`chat` behind the pages of a server that is well, or whose `/health` is as given."""
    pages = {b"/health": health or answers(), b"/metrics": answers(404), b"/v1/models": answers(404)}

    async def script(exchange: Exchange) -> None:
        await pages.get(exchange.target, chat)(exchange)

    return script


async def hangs(exchange: Exchange) -> None:
    """Never answer."""
    await exchange.hang()


async def resets(exchange: Exchange) -> None:
    """Break the connection off without a byte."""
    exchange.reset()


async def closes(exchange: Exchange) -> None:
    """Close the connection without a byte."""
    exchange.fin()


def in_turn(*scripts: Script) -> Script:
    """The first request gets the first script and so on; the last script goes on for ever."""

    async def script(exchange: Exchange) -> None:
        await scripts[min(exchange.number, len(scripts)) - 1](exchange)

    return script


def by_target(scripts: dict[bytes, Script]) -> Script:
    """The script of the request's target."""

    async def script(exchange: Exchange) -> None:
        await scripts[exchange.target](exchange)

    return script


def echoes(parts: Sequence[int] = ()) -> Script:
    """A 200 with the request's own body, for tests of bytes; not usable where the answer must look like an API's."""

    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(200, exchange.body, content_type="application/octet-stream"))

    return script

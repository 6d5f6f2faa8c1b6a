"""`Retry-After` over real sockets: whoever stood at the end of the queue then really goes on about that much later."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from poise.admission.queue import CentralQueue
from poise.proxy.exchange import Exchange as Waiting
from support.apis import CHAT
from support.gateway import gateway, short_settings
from support.http_bytes import request
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers
from support.wire import until

pytestmark = pytest.mark.alone

SLOTS, QUEUE = 8, 60


@dataclass
class Told:
    """What a refused caller was told, and who stood at the end of the queue then."""

    at_s: float
    seconds: int
    last: int


Pace = Callable[[float], float]


@pytest.mark.parametrize(
    ("arrivals_per_s", "service_s"),
    [
        (lambda s: 80.0, lambda s: 0.2),
        (lambda s: 250.0 if 1.0 < s < 2.0 else 20.0, lambda s: 0.2),
        (lambda s: 60.0, lambda s: 0.2 + 0.03 * s),
    ],
    ids=["steady overload", "a burst, then quiet", "slower and slower"],
)
async def test_the_time_told_is_within_half_of_the_real_one(arrivals_per_s: Pace, service_s: Pace) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    sent_on: dict[int, float] = {}
    told: list[Told] = []

    async def script(exchange: Exchange) -> None:
        sent_on[json.loads(exchange.body)["number"]] = loop.time()
        await asyncio.sleep(service_s(loop.time() - began_s))
        await answers()(exchange)

    async with ScriptedReplica(script) as replica:
        settings = short_settings(limits={"queue": QUEUE, "queue_timeout_s": 30.0}, first_output_s=30.0)
        async with gateway(replica, caps=SLOTS, settings=settings) as poise:
            waiting = poise.data_path.waiting.queue

            async def ask(number: int) -> None:
                caller = await poise.client()
                await caller.send(request(body=CHAT.request_body(stream=False, number=number)))
                answer = await caller.answer(within_s=30)
                if answer.status == 429:
                    told.append(Told(loop.time(), int(answer.value("retry-after") or b"0"), youngest(waiting)))
                caller.wire.fin()

            tasks, due, at_s = [], 0.0, 0.0
            while at_s < 5.0:
                before_s, at_s = at_s, loop.time() - began_s
                due += arrivals_per_s(at_s) * (at_s - before_s)
                while due >= 1.0:
                    due -= 1.0
                    tasks.append(loop.create_task(ask(len(tasks)), name="kit caller"))
                await asyncio.sleep(0.02)
            await asyncio.gather(*tasks)
            await until(lambda: waiting.length == 0, "the queue to be empty")
    assert len(told) > 30
    assert replica.most_active == SLOTS
    for one in told:
        real_s = sent_on[one.last] - one.at_s
        off_s = max(abs(one.seconds - 0.5 - real_s) - 0.5, 0.0)  # whole seconds, rounded up
        assert off_s < 0.5 * real_s, (one, real_s)


def youngest(queue: CentralQueue) -> int:
    """The number of the request at the end of the queue."""
    (flow,) = [flow for flows in queue._flows.values() for flow in flows]
    waiter = flow.youngest().waiter
    assert isinstance(waiter, Waiting)
    number = json.loads(waiter._request.body)["number"]
    assert isinstance(number, int)
    return number

"""What callers make up must not become series: not users, sessions, models or paths; a replica's series go with it."""

import json
import time
from itertools import count

from prometheus_client.parser import text_string_to_metric_families

from poise.admin.metrics import Sources, metrics_page
from support.apis import CHAT
from support.gateway import Gateway, gateway
from support.http_bytes import request
from support.scripted_replica import ScriptedReplica
from support.scripts import answers

REQUESTS = 5000


def series(poise: Gateway) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """The series of a scrape, which must not take long."""
    started_s = time.perf_counter()
    page = metrics_page(Sources(poise.fleet, poise.counters, "random"), 0.0)
    assert time.perf_counter() - started_s < 0.2
    families = text_string_to_metric_families(page.decode())
    return {(s.name, tuple(sorted(s.labels.items()))) for family in families for s in family.samples}


def hostile(number: int) -> bytes:
    """A request whose caller makes everything up."""
    target = "/v1/chat/completions" if number % 2 else f"/v1/chat/completions/{number}"
    body = CHAT.request_body(stream=False, model=f"model-{number}", user=f"user-{number}")
    headers = [("x-session-id", f"session-{number}"), ("x-user-id", f"u-{number}"), ("x-request-id", f"id-{number}")]
    return request(target, body, headers=headers)


async def test_series_do_not_grow_with_what_callers_make_up() -> None:
    async with ScriptedReplica(answers()) as one, ScriptedReplica(answers()) as two, gateway(one, two) as poise:
        client, numbers = await poise.client(), count()
        for _ in range(20):
            await client.ask(hostile(next(numbers)))
        before = series(poise)
        for _ in range(REQUESTS):
            await client.ask(hostile(next(numbers)))
        after = series(poise)
        assert after - before == set()
        one.requests.clear()
        for made_up in ("model-", "user-", "session-", "u-", "id-"):
            assert made_up not in json.dumps(sorted(after))


async def test_the_series_of_a_replica_and_of_its_model_go_away_with_it() -> None:
    async with ScriptedReplica(answers()) as one, ScriptedReplica(answers()) as two, gateway(one, two) as poise:
        poise.fleet.serves(poise.fleet.at(0), ("only-there", "everywhere"))
        poise.fleet.serves(poise.fleet.at(1), ("everywhere",))
        poise.counters.times.follow(poise.fleet.served_models)
        client = await poise.client()
        for model in ("only-there", "everywhere", "nowhere"):
            await client.ask(request(body=CHAT.request_body(stream=False, model=model)))
        labels = {value for _, pairs in series(poise) for _, value in pairs}
        assert {"r1", "r2", "only-there", "everywhere", "other"} <= labels
        assert "nowhere" not in labels
        poise.fleet.leave("r1")
        poise.counters.times.follow(poise.fleet.served_models)
        labels = {value for _, pairs in series(poise) for _, value in pairs}
        assert {"r2", "everywhere", "other"} <= labels
        assert not {"r1", "only-there"} & labels

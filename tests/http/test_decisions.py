"""Recent decisions are explained: every candidate as it was, who was chosen, what came of it; nothing a caller said."""

import json
from typing import Any

import pytest

from poise.admin import decisions_page
from poise.core.reading import LoadReading
from poise.core.request import RequestFacts
from poise.proxy.request import IncomingRequest
from poise.proxy.trail import TRAILS_PER_TICK, Trails
from poise.routing.policies.load_score import LoadScore, LoadScoreSettings
from poise.routing.policies.soft_affinity import SoftAffinity, SoftAffinitySettings
from support.apis import CHAT
from support.gateway import Gateway, gateway
from support.http_bytes import request
from support.scripted_replica import ScriptedReplica
from support.scripts import answers, answers_error, in_turn, streams
from support.wire import until


def decisions(poise: Gateway, **filters: Any) -> list[dict[str, Any]]:
    """The page as an operator reads it."""
    found: list[dict[str, Any]] = json.loads(json.dumps([*decisions_page.decisions(poise.data_path.trails, **filters)]))
    return found


def read(poise: Gateway, name: str, **reading: float) -> None:
    """Give the fleet a reading of one replica."""
    replica = poise.fleet.named(name)
    assert replica is not None
    poise.fleet.scrape_began(replica)
    poise.fleet.scraped(replica, LoadReading(**reading), 0.0)  # type: ignore[arg-type]


async def test_a_decision_shows_every_candidates_terms_and_what_came_of_it() -> None:
    policy = LoadScore(LoadScoreSettings())
    async with (
        ScriptedReplica(streams(*CHAT.events)) as busy,
        ScriptedReplica(streams(*CHAT.events)) as idle,
        gateway(busy, idle, policy=policy) as poise,
    ):
        read(poise, "r1", waiting=10, kv_usage_ratio=0.5, gpu_utilisation_ratio=0.5)
        read(poise, "r2", waiting=0, kv_usage_ratio=0.25, gpu_utilisation_ratio=0.5)
        headers = (("x-session-id", "a secret session"), ("x-request-id", "id-7"))
        await poise.ask(request(body=CHAT.request_body(stream=True, user="a secret user"), headers=headers))
        (decision,) = decisions(poise)
        assert (decision["replica"], decision["reason"], decision["decision"]) == ("r2", "least load", "send")
        assert (decision["number"], decision["decisions"]) == (1, 1)
        assert decision["home"] in ("r1", "r2")
        assert decision["request_id"] == "id-7"
        busy_terms, idle_terms = decision["candidates"]
        assert (busy_terms["kv"], busy_terms["queue"], busy_terms["gpu"]) == (0.5, 10, 0.5)
        assert busy_terms["score"] == pytest.approx(0.5 * 0.5 + 0.3 * 0.5 + 0.2 * 0.5)
        assert idle_terms["score"] == pytest.approx(0.5 * 0.25 + 0.2 * 0.5)
        assert (idle_terms["queue"], idle_terms["in_flight"]) == (0, 0), "as they were before the request was sent"
        assert decision["outcome"] == decision["request"]["outcome"] == "completed"
        assert 0 < decision["first_output_s"] <= decision["request"]["duration_s"]
        assert decision["predicted_first_output_s"] is None
        shown = json.dumps(decision)
        assert "secret" not in shown
        assert "127.0.0.1" not in shown


async def test_a_retry_is_a_second_decision_with_an_outcome_of_its_own() -> None:
    async with (
        ScriptedReplica(answers_error(503)) as broken,
        ScriptedReplica(answers()) as healthy,
        gateway(broken, healthy) as poise,
    ):
        await poise.ask(request(body=CHAT.request_body(stream=False)))
        second, first = decisions(poise)
        assert (first["replica"], first["outcome"], first["error"]) == ("r1", "failed", "refused")
        assert (second["replica"], second["outcome"], second["error"]) == ("r2", "completed", None)
        assert [one["excluded"] for one in second["candidates"]] == [True, False]
        assert first["request"] == second["request"]
        assert first["request"]["attempts"] == 2
        assert decisions(poise, replica="r1") == [first]
        assert decisions(poise, limit=1) == [second]
        assert decisions(poise, request_id=first["request_id"]) == [second, first]
        assert decisions(poise, request_id="another") == []


async def test_why_a_replica_was_not_available_is_said() -> None:
    async with ScriptedReplica(answers()) as one, ScriptedReplica(answers()) as two, gateway(one, two) as poise:
        read(poise, "r1", kv_usage_ratio=0.9)
        await poise.ask(request(body=CHAT.request_body(stream=False)))
        read(poise, "r1", asleep=True)
        await poise.ask(request(body=CHAT.request_body(stream=False)))
        obstacles = [[one["obstacle"] for one in decision["candidates"]] for decision in decisions(poise)]
        assert obstacles == [["asleep", None], ["KV usage over the throttle", None]]


async def test_a_session_that_is_sent_away_names_its_home() -> None:
    policy = SoftAffinity(SoftAffinitySettings(affinity_threshold=0.5))
    ask = request(body=CHAT.request_body(stream=False), headers=[("x-session-id", "s")])
    async with (
        ScriptedReplica(answers()) as one,
        ScriptedReplica(answers()) as two,
        gateway(one, two, policy=policy) as poise,
    ):
        await poise.ask(ask)
        home = decisions(poise)[0]["home"]
        assert decisions(poise)[0]["replica"] == home
        for name in ("r1", "r2"):
            read(poise, name, kv_usage_ratio=0.8 if name == home else 0.1, waiting=20 if name == home else 0)
        await poise.ask(ask)
        spilled = decisions(poise)[0]
        assert (spilled["reason"], spilled["home"]) == ("spill", home)
        assert spilled["replica"] != home


async def test_a_request_that_waits_is_noted_once_and_is_explained_while_it_waits() -> None:
    async with ScriptedReplica(answers()) as only, gateway(only) as poise:
        read(poise, "r1", kv_usage_ratio=0.9)
        client = await poise.client()
        await client.send(request(body=CHAT.request_body(stream=False)))
        await until(lambda: decisions(poise), "the request to wait")
        (waiting,) = decisions(poise)
        assert (waiting["decision"], waiting["replica"], waiting["request"]) == ("wait", None, None)
        read(poise, "r1", kv_usage_ratio=0.5)
        await client.answer()
        sent, waited = decisions(poise)
        assert (waited["decision"], sent["decision"]) == ("wait", "send")
        assert sent["after_s"] > waited["after_s"]


def test_a_flood_is_sampled_and_the_ring_stays_small() -> None:
    trails, asked = Trails(5), IncomingRequest()
    for _ in range(3):
        begun = [trails.begin(asked, RequestFacts(), 0.0) for _ in range(3 * TRAILS_PER_TICK)]
        assert [trail is not None for trail in begun] == [True] * TRAILS_PER_TICK + [False] * 2 * TRAILS_PER_TICK
        assert list(trails.recent) == begun[TRAILS_PER_TICK - 5 : TRAILS_PER_TICK], "the newest are kept"
        trails.tick()
    assert Trails(0).begin(asked, RequestFacts(), 0.0) is None


async def test_a_failing_first_answer_in_a_stream_is_a_decision_that_failed() -> None:
    refusing = streams(CHAT.error_event(503))
    async with (
        ScriptedReplica(in_turn(refusing)) as busy,
        ScriptedReplica(streams(*CHAT.events)) as idle,
        gateway(busy, idle) as poise,
    ):
        await poise.ask(request(body=CHAT.request_body(stream=True)))
        assert [(d["replica"], d["outcome"], d["error"]) for d in decisions(poise)] == [
            ("r2", "completed", None),
            ("r1", "failed", "refused"),
        ]

"""The poller against replicas that are slow, silent, broken, gone and back: what the fleet and the catalog are told."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.fleet.fleet import Fleet
from poise.telemetry.poller import Poller
from poise.telemetry.settings import TelemetrySettings
from support.http_bytes import answer
from support.scripted_replica import Exchange, Script, ScriptedReplica
from support.wire import until

DATA = Path(__file__).parents[1] / "data"
LOAD = (DATA / "vllm" / "metrics_load_8001.txt").read_bytes()
DP2 = (DATA / "vllm" / "metrics_dp2.txt").read_bytes()
GPUS = (DATA / "engines" / "dcgm.txt").read_bytes()
SETTINGS = TelemetrySettings(interval_s=0.05, timeout_s=0.04, models_interval_s=0.1, models_timeout_s=0.5)
RARE_MODELS = TelemetrySettings(interval_s=0.05, timeout_s=0.04, models_interval_s=600, models_timeout_s=0.5)


def engine(*models: str, page: bytes = LOAD) -> Script:
    """Answers as a healthy engine does that serves `models`."""

    async def script(exchange: Exchange) -> None:
        entries = [{"id": model, "object": "model", "by": exchange.replica.name} for model in models]
        is_models = exchange.target == b"/v1/models"
        await exchange.write(
            answer(200, json.dumps({"object": "list", "data": entries}).encode() if is_models else page)
        )

    return script


def scrapes(replica: ScriptedReplica) -> list[Exchange]:
    return [exchange for exchange in replica.requests if exchange.target == b"/metrics"]


def spec(name: str, replica: ScriptedReplica | int, rank: str = "", **more: object) -> ReplicaSpec:
    port = replica if isinstance(replica, int) else replica.port
    return ReplicaSpec(name, parse_replica_url(f"http://127.0.0.1:{port}{rank}"), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def polling(
    *specs: ReplicaSpec, settings: TelemetrySettings = SETTINGS, stale_s: float = 2.0
) -> AsyncIterator[tuple[Fleet, Poller]]:
    """A poller at work; when it is closed, no task and no socket of it is left."""
    sockets = open_sockets()
    fleet = Fleet(stale_s=stale_s)
    for one in specs:
        fleet.join(one)
    poller = Poller(fleet, settings)
    await poller.start()
    yield fleet, poller
    await poller.close()
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("watch", "telemetry"))]
    assert left == []
    await until(lambda: open_sockets() <= sockets, "all sockets are closed")


def open_sockets() -> int:
    """Sockets of this process."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and os.path.islink(link) and "socket:" in _target(link) for link in links)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def usable(fleet: Fleet, *names: str) -> Callable[[], bool]:
    return lambda: all((replica := fleet.named(name)) is not None and replica.reading is not None for name in names)


async def test_load_and_models_reach_the_fleet() -> None:
    async with ScriptedReplica(engine("qwen", "lora")) as replica, polling(spec("a", replica)) as (fleet, poller):
        a = fleet.named("a")
        assert a is not None
        await until(lambda: a.reading is not None and a.models is not None, "a reading and models")
        assert a.reading and (a.reading.running, a.reading.waiting) == (4, 8)
        assert a.models == ("qwen", "lora")
        await until(lambda: poller.catalog.page() is not None, "a model list")
        assert [entry["id"] for entry in json.loads(poller.catalog.page() or b"")["data"]] == ["qwen", "lora"]
        await until(lambda: len(scrapes(replica)) > 5, "more scrapes")
        assert replica.connections <= 2 + len([e for e in replica.requests if e.target != b"/metrics"])


async def test_a_replica_without_usable_metrics_is_unknown_and_delays_nobody() -> None:
    async def broken(exchange: Exchange) -> None:
        """404, HTML and silence in turn."""
        kind = len(scrapes(exchange.replica)) % 3
        if exchange.target == b"/metrics" and kind == 0:
            await exchange.hang()
        await exchange.write(answer(200, b"<html>hello</html>\n") if kind == 2 else answer(404))

    slow = TelemetrySettings(interval_s=0.05, timeout_s=1.0)
    with capture_logs() as logs:
        async with (
            ScriptedReplica(engine("m"), "good") as good,
            ScriptedReplica(broken, "bad") as bad,
            polling(spec("good", good), spec("bad", bad), settings=slow) as (fleet, _),
        ):
            await until(lambda: len(scrapes(bad)) >= 4, "a round and the next")
            gone_wrong = fleet.named("bad")
            assert gone_wrong is not None and usable(fleet, "good")()
            assert gone_wrong.reading is None and gone_wrong.scrape_error
            assert gone_wrong.available, "unknown load does not take a replica out of service"
            arrivals_s = [exchange.arrived_at_s for exchange in scrapes(good)]
            assert max(after - before for before, after in pairwise(arrivals_s)) < slow.timeout_s / 2
    said = [(entry["replica"], entry["event"]) for entry in logs if entry["log_level"] == "warning"]
    assert sorted(said) == [("bad", "metrics page not usable"), ("bad", "model list not usable")]


async def test_each_change_is_logged_once() -> None:
    healthy = True

    async def script(exchange: Exchange) -> None:
        await (engine("m")(exchange) if healthy else exchange.write(answer(500)))

    with capture_logs() as logs:
        async with ScriptedReplica(script) as replica, polling(spec("a", replica), settings=RARE_MODELS) as (fleet, _):
            a = fleet.named("a")
            assert a is not None
            for _ in range(2):
                await until(lambda: a.reading is not None and a.failed_scrapes == 0, "good scrapes")
                healthy = False
                await until(lambda: a.failed_scrapes >= 3, "failed scrapes")
                assert a.scrape_error == "the answer is 500"
                healthy = True
            await until(lambda: a.failed_scrapes == 0, "good scrapes")
            await asyncio.sleep(0)
    events = [entry["event"] for entry in logs if entry["event"].startswith("metrics")]
    assert events == ["metrics page not usable", "metrics page usable again"] * 2


async def test_ranks_of_one_server_share_one_scrape() -> None:
    async with (
        ScriptedReplica(engine("m", page=DP2)) as server,
        polling(spec("zero", server, "@0"), spec("one", server, "@1"), spec("nine", server, "@9")) as (fleet, poller),
    ):
        await until(lambda: len(scrapes(server)) >= 4, "scrapes")
        await until(usable(fleet, "zero", "one"), "readings")
        zero, one, nine = (fleet.named(name) for name in ("zero", "one", "nine"))
        assert zero and one and nine and zero.reading and one.reading
        assert (zero.reading.generation_tokens, one.reading.generation_tokens) == (2050, 4550)
        assert nine.reading is None and "no rank 9, it has 0, 1" in (nine.scrape_error or "")
        first_s, last_s = scrapes(server)[0].arrived_at_s, scrapes(server)[-1].arrived_at_s
        assert len(scrapes(server)) <= (last_s - first_s) / SETTINGS.interval_s * 1.5 + 2
        await until(lambda: poller.catalog.page() is not None, "a model list")
        assert len(json.loads(poller.catalog.page() or b"")["data"]) == 1


async def test_gpu_utilisation_is_read_once_for_all_replicas_of_a_node() -> None:
    async with (
        ScriptedReplica(engine("m")) as first,
        ScriptedReplica(engine("m")) as second,
        ScriptedReplica(engine(page=GPUS), "exporter") as exporter,
    ):
        url = f"http://127.0.0.1:{exporter.port}/metrics?node=1"
        a = spec("a", first, gpus=(0, 1), gpu_metrics_url=url)
        b = spec("b", second, gpus=(10,), gpu_metrics_url=url)
        c = spec("c", first, "@0", gpus=(7,), gpu_metrics_url=url)
        async with polling(a, b, c) as (fleet, _):

            def gpu(name: str) -> float | None:
                replica = fleet.named(name)
                return replica.reading.gpu_utilisation_ratio if replica and replica.reading else None

            await until(lambda: (gpu("a"), gpu("b")) == (pytest.approx(0.6), 0.0), "gpu utilisation")
            await until(usable(fleet, "c"), "a reading")
            assert gpu("c") is None, "a gpu that is not on the page"
            assert {exchange.target for exchange in exporter.requests} == {b"/metrics?node=1"}
            assert exporter.connections == 1


async def test_gpu_utilisation_is_forgotten_when_the_exporter_dies() -> None:
    async with ScriptedReplica(engine("m")) as replica:
        exporter = ScriptedReplica(engine(page=GPUS))
        await exporter.__aenter__()
        one = spec("a", replica, gpus=(0,), gpu_metrics_url=f"http://127.0.0.1:{exporter.port}/metrics")
        async with polling(one, stale_s=0.2) as (fleet, _):
            a = fleet.named("a")
            assert a is not None
            await until(lambda: a.reading is not None and a.reading.gpu_utilisation_ratio == 0.9, "gpu utilisation")
            await exporter.__aexit__(None, None, None)
            await until(lambda: a.reading is not None and a.reading.gpu_utilisation_ratio is None, "it is forgotten")
            assert a.reading is not None and a.reading.running == 4


async def test_replicas_that_join_and_leave_are_followed() -> None:
    async with (
        ScriptedReplica(engine("m")) as first,
        ScriptedReplica(engine("n")) as second,
        polling(spec("a", first)) as (fleet, poller),
    ):
        fleet.join(spec("b", second))
        await until(usable(fleet, "a", "b"), "both are read")
        await until(lambda: set(fleet.models()) == {"m", "n"}, "both models")
        fleet.leave("a")
        await until(lambda: not first.wires, "its connections are closed")
        asked = len(first.requests)
        await until(lambda: b'"m"' not in (poller.catalog.page() or b""), "its model is not listed")
        more = len(second.requests) + 5
        await until(lambda: len(second.requests) > more, "the other is still read")
        assert len(first.requests) == asked


async def test_a_replica_that_takes_over_a_name_is_read_afresh() -> None:
    async with (
        ScriptedReplica(engine("m")) as first,
        ScriptedReplica(engine("n", page=DP2)) as second,
        polling(spec("a", first)) as (fleet, _),
    ):
        await until(usable(fleet, "a"), "a reading")
        fleet.leave("a")
        successor = fleet.join(spec("a", second))
        await until(lambda: successor.reading is not None and successor.models == ("n",), "the new one is read")
        assert successor.reading and successor.reading.generation_tokens == 6600


async def test_a_silent_replica_becomes_unknown_once_its_reading_is_old() -> None:
    silent = False

    async def script(exchange: Exchange) -> None:
        await (exchange.hang() if silent else engine("m")(exchange))

    async with ScriptedReplica(script) as replica, polling(spec("a", replica), stale_s=0.2) as (fleet, _):
        a = fleet.named("a")
        assert a is not None
        await until(lambda: a.reading is not None, "a reading")
        silent = True
        await until(lambda: a.failed_scrapes > 0, "a failed scrape")
        await until(lambda: a.reading is None, "the reading is forgotten")
        assert a.scrape_error == "no answer within 0.04 s"
        silent = False
        await until(lambda: a.reading is not None, "a new reading")


async def test_a_slow_scrape_never_overlaps_itself() -> None:
    busy = most = 0

    async def script(exchange: Exchange) -> None:
        nonlocal busy, most
        if exchange.target == b"/metrics":
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.1)
            busy -= 1
        await engine("m")(exchange)

    patient = TelemetrySettings(interval_s=0.02, timeout_s=1.0)
    async with ScriptedReplica(script) as replica, polling(spec("a", replica), settings=patient) as (fleet, _):
        await until(lambda: len(scrapes(replica)) >= 4, "scrapes")
        assert most == 1 and usable(fleet, "a")()


async def test_models_are_looked_at_again_when_a_replica_comes_back() -> None:
    models, healthy = ["old"], True

    async def script(exchange: Exchange) -> None:
        await (engine(*models)(exchange) if healthy else exchange.write(answer(503)))

    async with ScriptedReplica(script) as replica, polling(spec("a", replica), settings=RARE_MODELS) as (fleet, _):
        a = fleet.named("a")
        assert a is not None
        await until(lambda: a.models == ("old",) and a.reading is not None, "the first model")
        healthy, models = False, ["new"]
        await until(lambda: a.failed_scrapes > 0, "a failed scrape")
        healthy = True
        await until(lambda: a.models == ("new",), "the new model")


async def test_the_model_list_is_there_whatever_other_replicas_do() -> None:
    async with ScriptedReplica(engine("m", "x"), "up") as up, ScriptedReplica(Exchange.hang, "hung") as hung:
        async with ScriptedReplica(engine("gone")) as refusing:
            pass
        async with polling(spec("hung", hung), spec("down", refusing), spec("up", up)) as (fleet, poller):
            await until(lambda: poller.catalog.page() is not None, "a model list", within_s=1.0)
            late = fleet.join(spec("late", hung, "@0", model="m"))
            assert [entry["by"] for entry in json.loads(poller.catalog.page() or b"")["data"]] == ["up", "up"]
            assert late.models == ("m",)


async def test_a_replica_that_is_given_one_model_shows_no_other() -> None:
    async with ScriptedReplica(engine("m", "x")) as server, polling(spec("a", server, model="x")) as (fleet, poller):
        await until(lambda: poller.catalog.page() is not None, "a model list")
        assert [entry["id"] for entry in json.loads(poller.catalog.page() or b"")["data"]] == ["x"]
        assert set(fleet.models()) == {"x"}


async def test_the_model_list_ends_when_nobody_answers_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.telemetry.poller.MODELS_RETRY_S", 0.05)
    replica = ScriptedReplica(engine("m"))
    await replica.__aenter__()
    async with polling(spec("a", replica)) as (fleet, poller):
        await until(lambda: poller.catalog.page() is not None, "a model list")
        await replica.__aexit__(None, None, None)
        await until(lambda: poller.catalog.page() is None, "no model list")
        assert set(fleet.models()) == {"m"}, "routing goes on knowing what the replica served"


async def test_a_bad_gpu_url_is_said_and_stops_nothing() -> None:
    with capture_logs() as logs:
        async with (
            ScriptedReplica(engine("m")) as replica,
            polling(spec("a", replica, gpu_metrics_url="http://:x/metrics")) as (fleet, _),
        ):
            await until(usable(fleet, "a"), "a reading")
    assert ("a", "gpu metrics page not usable") in [(entry.get("replica"), entry["event"]) for entry in logs]


async def test_a_service_that_has_no_metrics_page_is_seldom_asked_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.telemetry.watch.MISSING_AFTER", 3)

    async def service(exchange: Exchange) -> None:
        await exchange.write(answer(404, b"{}"))

    with capture_logs() as lines:
        async with ScriptedReplica(service) as replica, polling(spec("a", replica)):
            await until(lambda: len(scrapes(replica)) == 3, "three looks")
            await asyncio.sleep(0.3)
            assert len(scrapes(replica)) == 3
    assert [line["event"] for line in lines].count("metrics page not usable") == 1

"""Many requests of every kind while replicas are killed, frozen, slowed, restarted, added and removed: each has one
outcome, nothing is altered, nothing is left.

`POISE_CHAOS_REQUESTS` sets the number of requests, `POISE_CHAOS_SEED` what happens meanwhile.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from poise.app.gateway import Gateway
from poise.config.load import ConfigInputs
from poise.core.request import Outcome
from poise.fleet.replica import Replica
from support.apis import events_of
from support.chaos import ABORTED, MODES, ChaosReplica, ChaosRequest
from support.gateway import left_tasks, open_sockets
from support.raw_client import Answer, RawClient, open_client
from support.wire import until

REQUESTS = int(os.environ.get("POISE_CHAOS_REQUESTS", "1000"))
SEED = int(os.environ.get("POISE_CHAOS_SEED", "1"))
LANES = 64
REPLICAS = 5
HARM_EVERY_S = 0.08
SETTINGS = """
host: 127.0.0.1
port: 0
admin: {port: 0}
timeouts: {connect_s: 0.5, first_output_s: 0.8, idle_s: 0.8, total_s: 5, hold_s: 0.2}
retry: {attempts: 3, budget_ratio: 0.5}
breaker: {open_s: 0.3}
health: {interval_s: 0.3, timeout_s: 0.3, slow_start_s: 0.2}
telemetry: {interval_s: 0.2, timeout_s: 0.15, models_interval_s: 0.5, models_timeout_s: 0.3}
membership: {check_interval_s: 0.05}
log: {requests: %s, level: error}
keys: {file: %s}
limits: {queue: 40, queue_timeout_s: 1}
replicas:
"""
KEYS_FILE = """
keys:
  - {name: one, key: sk-one, priority: 2}
  - {name: two, key: sk-two, tokens_per_min: 1000000}
  - {name: few, key: sk-few, max_concurrency: 16, priority: -1}
"""
AT_ONCE = 6
"""Requests that a replica is given at once: fewer than the lanes, so that the central queue is in use."""


class Play:
    """One run: the gateway, its replicas, and what was seen of every request."""

    def __init__(self, folder: Path, replicas: list[ChaosReplica], random: Random) -> None:
        self.config, self.log = folder / "poise.yaml", folder / "requests.jsonl"
        self.replicas = replicas
        self.random = random
        self.seen: dict[int, str] = {}
        """What the caller of each seed saw: `whole`, `failed`, `refused` or `left`."""
        self.members: set[Replica] = set()
        """Every replica that was ever one."""
        keys = folder / "keys.yaml"
        keys.write_text(KEYS_FILE)
        self._text = SETTINGS % (self.log, keys)
        self.configure(replicas)
        self.gateway = Gateway(self.inputs.load().settings, Random(1), inputs=self.inputs)

    @property
    def inputs(self) -> ConfigInputs:
        return ConfigInputs(str(self.config), {}, {})

    def configure(self, replicas: list[ChaosReplica]) -> None:
        """Have the file name these replicas."""
        lines = [
            f"  - {{url: 'http://127.0.0.1:{port}', name: p{port}, max_concurrency: {AT_ONCE}}}\n"
            for port in (replica.port for replica in replicas)
        ]
        self.config.write_text(self._text + "".join(lines))

    async def harm(self) -> None:
        """One thing after another happens, for ever."""
        while True:
            await asyncio.sleep(HARM_EVERY_S)
            self.members.update(self.gateway.fleet)
            if self.random.random() < 0.2:
                self.configure(self.random.sample(self.replicas, self.random.randrange(2, len(self.replicas) + 1)))
            else:
                replica = self.random.choice(self.replicas)
                await replica.set_mode(self.random.choice([*MODES, "well", "well", "slow", "well"]))

    async def ask(self, client: RawClient | None, wanted: ChaosRequest) -> RawClient | None:
        """Send one request and judge what comes back. Returns the connection if it can be used again."""
        client = client or await open_client(self.gateway.port, name="chaos")
        await client.send(wanted.sent)
        if wanted.hangs_up_after_bytes == 0:
            await asyncio.sleep(wanted.pause_s)
            return self._leave(client, wanted, b"")
        got = await client.head()
        while len(got.body) < (wanted.hangs_up_after_bytes or 1 << 30) and await got.piece():
            pass
        if not (got.complete or got.cut_short):
            return self._leave(client, wanted, got.body)
        self.seen[wanted.seed] = judged(wanted, got)
        if got.cut_short or got.value("connection") == b"close":
            client.close()
            return None
        return client

    def _leave(self, client: RawClient, wanted: ChaosRequest, body: bytes) -> None:
        self.random.choice((client.close, client.reset))()
        self.seen[wanted.seed] = "left"
        seen = as_sent(body)  # an event that broke off is ended before the error event, which is still to come
        assert wanted.whole.startswith((seen, seen.removesuffix(b"\n\n"))) or b'"error"' in body, (wanted.seed, body)

    async def lane(self, seeds: list[int]) -> None:
        """One caller's requests, one after another, most of them on a connection that is kept."""
        client: RawClient | None = None
        for seed in seeds:
            client = await self.ask(client, ChaosRequest(seed))
            if self.seen[seed] == "refused":
                await asyncio.sleep(0.2)
        if client is not None:
            client.close()


def as_sent(body: bytes) -> bytes:
    """A body without the comments that the gateway sends while it waits, and the event by which an engine gives up."""
    return bytes(body).replace(b": waiting for the replica\n\n", b"").replace(ABORTED, b"")


def judged(wanted: ChaosRequest, got: Answer) -> str:
    """What the caller saw. Fails if it is not right, and neither says that it is not."""
    body = as_sent(got.body)
    if got.status == 200 and body == wanted.whole:
        return "whole"
    if got.status == 200 and wanted.stream:
        *before, last = events_of(body)
        assert b'"error"' in last and b"[DONE]" not in before, (wanted.seed, body)
        passed_on = b"".join(event + b"\n\n" for event in before)
        assert wanted.whole.startswith(passed_on[:-2] if passed_on else b""), (wanted.seed, body)
        return "failed"
    assert not got.cut_short and got.status in (409, 429, 500, 502, 503, 504), (wanted.seed, got.status, body)
    assert json.loads(body)["error"]["message"]
    assert got.status != 429 or int(got.value("retry-after") or b"0") > 0
    return "refused"


@asynccontextmanager
async def chaos(folder: Path) -> AsyncIterator[Play]:
    """A gateway over replicas that come to harm until the block ends; then all is well again and everything is closed,
    and nothing must be left."""
    random = Random(SEED)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(ChaosReplica(random)) for _ in range(REPLICAS)]
        tasks, sockets = asyncio.all_tasks(), open_sockets()
        play = Play(folder, replicas, random)
        await play.gateway.start()
        harm = asyncio.create_task(play.harm(), name="kit harm")
        try:
            yield play
        finally:
            harm.cancel()
            with suppress(asyncio.CancelledError):
                await harm
            play.members.update(play.gateway.fleet)
            await play.gateway.close(drain_s=10)
        for replica in replicas:
            await replica.set_mode("well")
        await until(lambda: open_sockets() <= sockets, lambda: f"sockets to close: {open_sockets()} of {sockets}")
        await until(lambda: not left_tasks(tasks), lambda: f"tasks to end: {left_tasks(tasks)}")


@pytest.mark.timeout(600)
async def test_every_request_has_one_outcome_and_nothing_is_left(tmp_path: Path) -> None:
    async with chaos(tmp_path) as play:
        seeds = list(range(REQUESTS))
        await asyncio.gather(*(play.lane(seeds[number::LANES]) for number in range(LANES)))
    lines = [json.loads(line) for line in play.log.read_text().splitlines()]
    check_log(play, lines)
    check_books(play, lines)


def check_log(play: Play, lines: list[dict[str, object]]) -> None:
    """One line for each request, which says what its caller saw."""
    print("seen by callers:", dict(Counter(play.seen.values())))
    by_id = {str(line["request_id"]): line for line in lines}
    missing = {seed: saw for seed, saw in play.seen.items() if f"chaos-{seed}" not in by_id}
    assert not missing, [(seed, saw, vars(ChaosRequest(seed))) for seed, saw in missing.items()]
    assert len(lines) == len(by_id) == len(play.seen) == REQUESTS
    fitting = {
        "whole": {Outcome.COMPLETED},
        "failed": {Outcome.FAILED, Outcome.REFUSED},
        "refused": {Outcome.FAILED, Outcome.REFUSED},
        "left": set(Outcome),
    }
    for seed, saw in play.seen.items():
        assert by_id[f"chaos-{seed}"]["outcome"] in fitting[saw], (saw, by_id[f"chaos-{seed}"])


def check_books(play: Play, lines: list[dict[str, object]]) -> None:
    """All gauges are back at 0, all counters add up, and no request was sent more often than allowed."""
    counters = play.gateway.data_path.counters
    assert (counters.in_flight, counters.buffered_bytes, counters.client_connections) == (0, 0, 0)
    outcomes = Counter(str(line["outcome"]) for line in lines)
    counted: Counter[str] = Counter()
    for (_, outcome), count in counters.requests.items():
        counted[outcome] += count
    refused = Outcome.REFUSED
    assert counted.pop(refused, 0) <= outcomes.pop(refused, 0), "some are refused before they count as requests"
    assert counted == outcomes
    assert play.gateway.data_path.waiting.queue.length == 0
    assert {use.key.name: use.in_flight for use in play.gateway.data_path.key_limits.all()} == dict.fromkeys(
        ("one", "two", "few"), 0
    )
    for replica in play.members:
        since = replica.since_poll
        assert (replica.in_flight, replica.prefill_tokens, since.requests, since.tokens) == (0, 0, 0, 0), replica.name
    received = sum((replica.received for replica in play.replicas), Counter[int]())
    assert max(received.values()) <= 2 * (3 + 1), "the attempts, one more where a connection was stale, of two requests"

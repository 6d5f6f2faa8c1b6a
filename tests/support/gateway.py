"""A real `DataPath` over scripted replicas, which at the end of its block must have left nothing behind."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import openai

from poise.admission.keys import KeyRing
from poise.core.decision import Decision, Refuse, Send, Wait
from poise.core.replica import ReplicaAddress, ReplicaSpec
from poise.core.request import Outcome, RequestFacts
from poise.core.tls import server_context
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica
from poise.health.settings import BreakerSettings, HealthSettings
from poise.proxy.data_path import DataPath
from poise.proxy.settings import Cors, DataPathSettings, Limits, RetrySettings, Timeouts
from poise.routing.policy import FleetView, Policy
from poise.telemetry.poller import Poller
from poise.telemetry.settings import TelemetrySettings
from support.certificates import replica_files, server_files, server_tls
from support.raw_client import Answer, RawClient, open_client
from support.scripted_replica import ScriptedReplica
from support.transcript import Transcript
from support.wire import DEADLINE_S, until

SHORT_TIMEOUTS = Timeouts(
    connect_s=2.0, first_output_s=8.0, idle_s=8.0, total_s=20.0, hold_s=8.0, request_s=8.0, keep_alive_s=20.0
)
"""Shorter than a test's patience, longer than a slow machine's hiccups; a test shortens the one it is about."""

OFTEN = TelemetrySettings(interval_s=0.1, timeout_s=0.1)


class InOrder:
    """The first available replica that was not tried: a test knows where a request goes first and where next."""

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = [replica for replica in fleet.replicas if replica.slot not in tried]
        for replica in left:
            if replica.available:
                return Send(replica.slot, "in order")
        return Wait(now_s + 0.1, "all are full") if left else Refuse("no replica left")


class TakeTurns:
    """The available replica that was chosen longest ago."""

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = [replica for replica in fleet.replicas if replica.available and replica.slot not in tried]
        if not left:
            return Refuse("no replica left")
        return Send(min(left, key=lambda replica: replica.last_dispatch).slot, "turn")


@dataclass
class RecordingLog:
    """Stands for the request log: keeps every line."""

    lines: list[Any] = field(default_factory=list)
    error: OSError | None = None

    def write(self, line: Any) -> None:
        """Keep a line."""
        self.lines.append(line)

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def short_settings(
    *, limits: Mapping[str, float] | None = None, retry: Mapping[str, float] | None = None, cors: Cors | None = None,
    **timeouts: float,
) -> DataPathSettings:  # fmt: skip
    """Settings for tests: loopback, a port of the kernel's choice, short limits; keyword arguments are time limits."""
    return DataPathSettings(
        host="127.0.0.1",
        port=0,
        timeouts=replace(SHORT_TIMEOUTS, **timeouts),
        limits=Limits(**(limits or {})),  # type: ignore[arg-type]
        retry=RetrySettings(**(retry or {})),  # type: ignore[arg-type]
        cors=cors or Cors(),
    )


class Gateway:
    """The gateway under test, with what a test wants to ask of it."""

    def __init__(self, data_path: DataPath, fleet: Fleet, log: RecordingLog, transcript: Transcript) -> None:
        self.data_path = data_path
        self.fleet = fleet
        self.log = log
        self.transcript = transcript
        self.counters = data_path.counters
        self._clients: list[RawClient] = []

    @property
    def port(self) -> int:
        """The data port."""
        return self.data_path.port

    async def client(self, name: str = "caller", *, receive_buffer_bytes: int | None = None) -> RawClient:
        """A new connection to the gateway, closed at the end."""
        client = await open_client(
            self.port, receive_buffer_bytes=receive_buffer_bytes, name=name, transcript=self.transcript
        )
        self._clients.append(client)
        return client

    async def ask(self, *parts: bytes, name: str = "caller", within_s: float = DEADLINE_S) -> Answer:
        """Send one request on a connection of its own and read the whole answer."""
        client = await self.client(name)
        answer = await client.ask(*parts, within_s=within_s)
        client.wire.fin()
        return answer

    def openai(self) -> openai.AsyncOpenAI:
        """The stock client, without its own retries. Use as `async with`."""
        return openai.AsyncOpenAI(
            api_key="sk-test", base_url=f"http://127.0.0.1:{self.port}/v1", max_retries=0, timeout=DEADLINE_S
        )

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many requests ended in each way, all routes together."""
        total: Counter[Outcome] = Counter()
        for (_, outcome), count in self.counters.requests.items():
            total[Outcome(outcome)] += count
        return dict(total)

    def replica(self, name: str) -> Replica:
        """What the fleet knows of the replica called `name`."""
        found = self.fleet.named(name)
        assert found is not None, name
        return found

    async def settled(self, within_s: float = 2.0) -> None:
        """Come back when no request is in flight, here or in the fleet's books."""
        await until(lambda: self.unsettled == {}, lambda: f"tickets to be settled: {self.unsettled}", within_s)

    @property
    def unsettled(self) -> dict[str, int]:
        """What is still charged, by name; empty if nothing is."""
        counts = {"in flight": self.counters.in_flight, "buffered bytes": self.counters.buffered_bytes}
        counts["waiting"] = self.data_path.waiting.queue.length
        counts |= {f"{use.key.name} in flight": use.in_flight for use in self.data_path.key_limits.all()}
        for replica in self.fleet:
            counts[f"{replica.name} in flight"] = replica.in_flight
            counts[f"{replica.name} held tokens"] = replica.held_tokens
            counts[f"{replica.name} prefill tokens"] = replica.prefill_tokens
            counts[f"{replica.name} requests since poll"] = replica.since_poll.requests
            counts[f"{replica.name} tokens since poll"] = replica.since_poll.tokens
        return {name: count for name, count in counts.items() if count != 0}

    def hang_up(self) -> None:
        """Close every client that is still open."""
        for client in self._clients:
            client.wire.transport.abort()


def open_sockets() -> int:
    """Sockets that this process has open."""
    folder, count = "/proc/self/fd", 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
        except OSError:
            continue
    return count


def address_of(port: int) -> ReplicaAddress:
    """Where a replica of the kit is."""
    tls = server_tls() is not None
    return ReplicaAddress("127.0.0.1", port, tls, tls_files=replica_files() if tls else None)


@asynccontextmanager
async def gateway(
    *replicas: ScriptedReplica | int, settings: DataPathSettings | None = None, policy: Policy | None = None,
    keys: KeyRing | None = None, models: Any = None, caps: int | Literal["auto"] | None = None,
    breaker: BreakerSettings | None = None, health: HealthSettings | None = None,
) -> AsyncIterator[Gateway]:  # fmt: skip
    """A started gateway over the replicas (or bare ports), named r1, r2, ... in order, each with the same cap.

    Polled if `health` is given.

    If the block ends well, everything must be settled, every task ended and every socket closed.
    """
    fleet = Fleet(breaker=breaker, health=health)
    log, transcript = RecordingLog(), Transcript()
    for number, replica in enumerate(replicas, 1):
        port = replica if isinstance(replica, int) else replica.port
        spec = ReplicaSpec(f"r{number}", address_of(port), max_concurrency=caps)
        fleet.join(spec).condition.seen = True  # as if it had answered a probe
        if isinstance(replica, ScriptedReplica):
            replica.name, replica.transcript = f"r{number}", transcript
    tasks_before, sockets_before = asyncio.all_tasks(), open_sockets()
    tls = server_context(server_files()) if server_tls() else None
    data_path = DataPath(
        settings or short_settings(), fleet, policy or InOrder(), keys=keys, models=models, log=log, tls=tls
    )
    await data_path.start()
    under_test = Gateway(data_path, fleet, log, transcript)
    poller = Poller(fleet, OFTEN, health) if health is not None else None
    if poller is not None:
        await poller.start()
    try:
        yield under_test
        under_test.hang_up()
        await under_test.settled()
    finally:
        under_test.hang_up()
        await data_path.close()
        if poller is not None:
            await poller.close()
    await until(lambda: open_sockets() <= sockets_before, "the gateway's sockets to be closed")
    await until(lambda: not left_tasks(tasks_before), lambda: f"tasks to end: {left_tasks(tasks_before)}")
    assert data_path.counters.client_connections == 0


def left_tasks(before: Collection[asyncio.Task[Any]]) -> Sequence[str]:
    """Names of the tasks that were not there before and are not the kit's."""
    return [task.get_name() for task in asyncio.all_tasks() - set(before) if not task.get_name().startswith("kit ")]

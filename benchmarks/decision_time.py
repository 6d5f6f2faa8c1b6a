"""How long Poise takes to choose a replica, in this process: body to facts, the policy's choice, the ticket.

Prints one JSON object: for each case the times in microseconds. `benchmarks/run.py` runs it on the router's core.
"""

import json
import time
from collections import deque
from dataclasses import dataclass
from random import Random

from poise.core.decision import Send
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaAddress, ReplicaSpec
from poise.core.request import Outcome
from poise.fleet.fleet import Fleet
from poise.fleet.ticket import Ticket
from poise.routing.registry import DEFAULT_POLICY, make_policy
from poise.wire.facts import facts_from_json

BYTES_PER_TOKEN = 4
SESSIONS = 512
KV_TOKENS = 2_000_000
OPEN_PER_REPLICA = 8
DECISIONS_PER_SCRAPE = 50
"""A replica's reading is replaced after so many decisions: 256 replicas, 2 scrapes/s and 25,000 requests/s give 49."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet and one size of prompt."""

    replicas: int
    prompt_tokens: int
    decisions: int

    @property
    def name(self) -> str:
        """The case in words."""
        return f"{self.replicas} replicas, prompts of {self.prompt_tokens} tokens"


CASES = (Case(16, 175, 20_000), Case(256, 32_768, 5_000))


def make_fleet(replicas: int) -> Fleet:
    """Replicas that are ready."""
    fleet = Fleet(stale_s=3600.0)
    for number in range(replicas):
        fleet.join(ReplicaSpec(f"r{number}", ReplicaAddress("127.0.0.1", 8000 + number), model="tiny"))
    return fleet


def scrape(fleet: Fleet, slot: int, random: Random, now_s: float) -> None:
    """What the poller does with one page, its load drawn at random."""
    replica = fleet.at(slot)
    fleet.scrape_began(replica)
    load = random.random()
    reading = LoadReading(
        running=8.0 * load, waiting=4.0 * load, kv_usage_ratio=0.8 * load, kv_capacity_tokens=KV_TOKENS
    )
    fleet.scraped(replica, reading, now_s)


def make_bodies(prompt_tokens: int, random: Random) -> list[bytes]:
    """Chat bodies of different conversations."""
    filler = "".join(random.choices("etaoin shrdlu", k=prompt_tokens * BYTES_PER_TOKEN))
    return [
        json.dumps(
            {"model": "tiny", "messages": [{"role": "user", "content": f"{i} {filler}"}], "max_tokens": 64}
        ).encode()
        for i in range(16)
    ]


def measure(case: Case, random: Random) -> dict[str, float]:
    """The times of `case.decisions` decisions, each with the open requests and scrapes of a busy gateway around it."""
    fleet, policy = make_fleet(case.replicas), make_policy(DEFAULT_POLICY, {}, random)
    for slot in range(case.replicas):
        scrape(fleet, slot, random, 0.0)
    bodies = make_bodies(case.prompt_tokens, random)
    sessions = [f"conversation-{i}".encode() for i in range(SESSIONS)]
    tickets: deque[Ticket] = deque()
    facts_ns: list[int] = []
    choice_ns: list[int] = []
    for number in range(case.decisions):
        body, session, now_s = bodies[number % len(bodies)], sessions[random.randrange(SESSIONS)], number * 1e-4
        start = time.perf_counter_ns()
        facts = facts_from_json(body, session, None)
        read = time.perf_counter_ns()
        decision = policy.choose(facts, fleet.pool(facts.model), now_s, ())
        assert isinstance(decision, Send), decision
        tickets.append(fleet.dispatch(decision.slot, facts, now_s))
        end = time.perf_counter_ns()
        facts_ns.append(read - start)
        choice_ns.append(end - read)
        if len(tickets) > OPEN_PER_REPLICA * case.replicas:
            ticket = tickets.popleft()
            fleet.first_output(ticket, now_s)
            fleet.settle(ticket, Outcome.COMPLETED, now_s)
        if number % DECISIONS_PER_SCRAPE == 0:
            scrape(fleet, random.randrange(case.replicas), random, now_s)
    both = [facts + choice for facts, choice in zip(facts_ns, choice_ns, strict=True)]
    return {
        "p99_us": percentile_us(both, 0.99),
        "p50_us": percentile_us(both, 0.5),
        "choice_p99_us": percentile_us(choice_ns, 0.99),
        "choice_p50_us": percentile_us(choice_ns, 0.5),
    }


def percentile_us(values_ns: list[int], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted(values_ns)[int(share * (len(values_ns) - 1))] / 1e3


def main() -> None:
    """Measures every case."""
    print(json.dumps({case.name: measure(case, Random(1)) for case in CASES}))


if __name__ == "__main__":
    main()

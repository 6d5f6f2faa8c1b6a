"""One of two real replicas fails under load, in every way that an operator or the machine can make it fail.

Whatever had no output yet is answered by the other replica, or refused with a true 503 and `Retry-After`. An answer
that had begun ends in an error that no client takes for success. Nothing waits longer than the time limits.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from vllm_http import Answer, call, chat_body, wait_until
from vllm_servers import SLOTS, Gateway, OpenGateway, Replica, free_ports

CALLERS = 2 * SLOTS + 2
TOKENS = 40
AFTER_S = 10.0
FIRST_OUTPUT_S, IDLE_S = 5.0, 5.0
SETTINGS = {
    "policy": {"name": "least_requests"},
    "timeouts": {"connect_s": 1, "first_output_s": FIRST_OUTPUT_S, "idle_s": IDLE_S, "total_s": 30},
    "retry": {"attempts": 2, "budget_floor": 50},
    "breaker": {"failures": 3, "window_s": 10, "open_s": 1.5},
    "health": {"interval_s": 0.5, "timeout_s": 1, "failures": 3, "stall_s": 3, "slow_start_s": 1},
}
LONGEST_S = 2 * FIRST_OUTPUT_S + IDLE_S + 4  # two attempts and an answer, on a machine whose two cores are all taken
pytestmark = [pytest.mark.vllm, pytest.mark.faults, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Ended:
    """How one request ended, and after how long."""

    kind: str
    """`whole`, `refused` (503 with Retry-After), `broken` (an error after output), or `wrong`."""
    replica: str
    began_s: float
    seconds: float
    detail: str = ""


def verdict(answer: Answer, stream: bool) -> tuple[str, str]:
    """What a careful client makes of `answer`."""
    if answer.status == 503 and answer.headers.get("retry-after", "").isdigit():
        return "refused", ""
    if answer.status != 200:
        return "wrong", f"status {answer.status}: {answer.body[:200]!r}"
    if not stream:
        reply = json.loads(answer.body)
        whole = reply["usage"]["completion_tokens"] == TOKENS and reply["choices"][0]["finish_reason"] == "length"
        return ("whole", "") if whole else ("wrong", f"partial answer with 200: {answer.body[:300]!r}")
    events: list[Any] = [json.loads(data) for data in answer.events() if data != "[DONE]"]
    if any("error" in event for event in events):
        return ("broken", "") if len(events) > 1 else ("wrong", f"only an error: {events}")
    finished = any(choice["finish_reason"] == "length" for event in events for choice in event["choices"])
    if finished and not answer.is_cut and answer.events()[-1] == "[DONE]":
        return "whole", ""
    return "wrong", f"a stream that ends without an error and is not whole: {answer.events()[-3:]}"


class Load:
    """Callers that ask again and again, half of them for streams."""

    def __init__(self, url: str) -> None:
        self._url = url + "/v1/chat/completions"
        self._stopped = Event()
        self.served: set[str] = set()
        """The replicas that have given whole answers."""
        self._pool = ThreadPoolExecutor(CALLERS)
        self._callers = [self._pool.submit(self._ask_on, number) for number in range(CALLERS)]

    def end(self) -> list[Ended]:
        """Let every caller finish what it has asked for."""
        self._stopped.set()
        self._pool.shutdown()
        return [ended for caller in self._callers for ended in caller.result()]

    def _ask_on(self, number: int) -> list[Ended]:
        ended: list[Ended] = []
        while not self._stopped.is_set():
            ended.append(self._ask(f"Caller {number}, request {len(ended)}", stream=number % 2 == 0))
        return ended

    def _ask(self, content: str, *, stream: bool) -> Ended:
        began_s = time.monotonic()
        try:
            answer = call(self._url, chat_body(content, TOKENS, stream=stream), timeout_s=3 * LONGEST_S)
        except OSError as error:
            return Ended("wrong", "", began_s, time.monotonic() - began_s, f"no answer: {error!r}")
        kind, detail = verdict(answer, stream)
        replica = answer.headers.get("x-poise-replica", "")
        if kind == "whole":
            self.served.add(replica)
        return Ended(kind, replica, began_s, time.monotonic() - began_s, detail)


def dev(replica: Replica, path: str) -> None:
    """Use a control route of the engine, as an operator would."""
    assert call(replica.url + path, {}).status == 200


def send(number: signal.Signals) -> Callable[[Replica], None]:
    return lambda replica: replica.process.send_signal(number)


@dataclass(frozen=True)
class Fault:
    """What happens to the replica, and how it is undone where it can be; `flags` are vLLM's own."""

    name: str
    strike: Callable[[Replica], None]
    undo: Callable[[Replica], None] | None = None
    flags: Sequence[str] = ()


LASTING = (
    Fault("sigterm", send(signal.SIGTERM)),
    Fault("drain", send(signal.SIGTERM), flags=("--shutdown-timeout", "15")),
    Fault("kill", send(signal.SIGKILL)),
)
PASSING = (
    Fault("sleep", lambda replica: dev(replica, "/sleep?level=1"), lambda replica: dev(replica, "/wake_up")),
    Fault("pause", lambda replica: dev(replica, "/pause?mode=abort"), lambda replica: dev(replica, "/resume")),
    Fault("sigstop", send(signal.SIGSTOP), send(signal.SIGCONT)),
)
StartVictim = Callable[..., Replica]


@pytest.fixture(scope="module")
def start_victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartVictim]:
    """`start_victim(*flags)`: a replica that may be broken; the one before is stopped."""
    victims: list[Replica] = []

    def start(*flags: str) -> Replica:
        for victim in victims:
            victim.stop()
        (port,) = free_ports(1)
        logs = tmp_path_factory.mktemp("victim")
        victim = Replica("r2", port, logs, *flags, environment={"VLLM_SERVER_DEV_MODE": "1"})
        victims.append(victim)
        wait_until(lambda: victim.answers("/health"), 110, "the victim answers")
        victim.stand_back()
        return victim

    yield start
    for victim in victims:
        victim.stop()


def strike_under_load(gateway: Gateway, victim: Replica, fault: Fault) -> tuple[list[Ended], float]:
    """All that was asked for before, during and after the fault, and when it struck."""
    load = Load(gateway.url)
    try:
        wait_until(lambda: load.served == {"r1", "r2"} and victim.load()[0], 60, "both replicas serve")
        struck_s = time.monotonic()
        fault.strike(victim)
        time.sleep(AFTER_S)
    finally:
        ended = load.end()
    return ended, struck_s


def check(ended: list[Ended], struck_s: float, gateway: Gateway) -> None:
    """Every request ended rightly and in time, and the gateway's books are closed."""
    wrong = [request for request in ended if request.kind == "wrong"]
    assert not wrong, wrong[:5]
    late = [request for request in ended if request.seconds > LONGEST_S]
    assert not late, late[:5]
    kinds = Counter(request.kind for request in ended)
    broken = [request for request in ended if request.kind == "broken"]
    assert all(request.began_s < struck_s + LONGEST_S and request.replica == "r2" for request in broken), broken
    assert kinds["whole"] > len(ended) / 2, kinds
    wait_until(lambda: all(replica["in_flight"] == 0 for replica in gateway.fleet()), 5, "nothing is in flight")


@pytest.mark.parametrize("fault", LASTING, ids=lambda fault: fault.name)
def test_a_replica_that_ends_loses_nothing(
    replicas: tuple[Replica, Replica], open_gateway: OpenGateway, start_victim: StartVictim, fault: Fault
) -> None:
    victim = start_victim(*fault.flags)
    with open_gateway(replicas[0], victim, settings=SETTINGS) as gateway:
        ended, struck_s = strike_under_load(gateway, victim, fault)
        check(ended, struck_s, gateway)
        late = [request for request in ended if request.began_s > struck_s + AFTER_S / 2]
        assert late and all(request.kind == "whole" and request.replica == "r1" for request in late), late[:5]


def test_a_replica_that_stands_still_loses_nothing_and_comes_back(
    replicas: tuple[Replica, Replica], open_gateway: OpenGateway, start_victim: StartVictim
) -> None:
    victim = start_victim()
    for fault in PASSING:
        with open_gateway(replicas[0], victim, settings=SETTINGS) as gateway:
            try:
                ended, struck_s = strike_under_load(gateway, victim, fault)
            finally:
                assert fault.undo is not None
                fault.undo(victim)
            check(ended, struck_s, gateway)

            def served() -> bool:
                answers = [call(gateway.url + "/v1/chat/completions", chat_body("Hello", 2)) for _ in range(4)]
                return any(answer.headers.get("x-poise-replica") == "r2" for answer in answers)

            wait_until(served, 20, f"the victim serves again after {fault.name}")
        wait_until(victim.is_idle, 20, "the victim is idle")


def test_with_nobody_left_the_answer_is_a_true_503(open_gateway: OpenGateway, start_victim: StartVictim) -> None:
    victim = start_victim()
    with open_gateway(victim, settings=SETTINGS) as gateway:
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        wait_until(
            lambda: call(gateway.url + "/v1/chat/completions", chat_body("Hello", 2)).status == 503, 10, "503 is said"
        )
        for stream in (False, True):
            began_s = time.monotonic()
            answer = call(gateway.url + "/v1/chat/completions", chat_body("Hello", 2, stream=stream))
            assert (answer.status, verdict(answer, stream)[0]) == (503, "refused"), answer
            assert time.monotonic() - began_s < LONGEST_S

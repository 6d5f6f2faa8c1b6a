"""The demo's callers: conversations that begin at random, each turn sending along all that was said before."""

import asyncio
from collections import deque
from dataclasses import dataclass
from random import Random
from statistics import quantiles
from types import TracebackType
from typing import Self

from poise.bench.client import TimedAnswer, stream_chat
from poise.core.clock import monotonic_s
from poise.core.tasks import TaskGroupOwner
from poise.workload.arrivals import poisson_gaps_s
from poise.workload.conversations import Conversation, ConversationMix, conversations

WINDOW_S = 30.0
"""Rates and times are of the requests that ended within this time."""


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """What callers saw. Times and rates over the last `WINDOW_S`, None if nothing ended; counts since the start."""

    completed: int
    failed: int
    requests_per_s: float
    first_output_p50_s: float | None
    first_output_p99_s: float | None
    end_to_end_p50_s: float | None
    cached_ratio: float | None
    last_error: str | None


class Traffic:
    """Callers of one gateway, from `async with` to the end of its block, which ends conversations where they are."""

    def __init__(self, port: int, model: str, conversations_per_s: float, random: Random) -> None:
        self._port = port
        self._model = model
        self._gaps_s = poisson_gaps_s(conversations_per_s, random)
        self._conversations = conversations(ConversationMix(), random)
        self._tasks = TaskGroupOwner()
        self._ended: deque[tuple[float, TimedAnswer]] = deque()
        self._started_at_s = monotonic_s()
        self._completed = 0
        self._failed = 0
        self._last_error: str | None = None

    async def __aenter__(self) -> Self:
        self._started_at_s = monotonic_s()
        self._tasks.spawn(self._begin_conversations(), name="demo traffic")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()

    def summary(self) -> TrafficSummary:
        """What the callers saw up to now."""
        now_s = monotonic_s()
        while self._ended and now_s - self._ended[0][0] > WINDOW_S:
            self._ended.popleft()
        answers = [answer for _, answer in self._ended]
        first_outputs_s = [a.first_output_s for a in answers if a.first_output_s is not None]
        prompt_tokens = sum(a.prompt_tokens or 0 for a in answers)
        return TrafficSummary(
            completed=self._completed,
            failed=self._failed,
            requests_per_s=len(answers) / max(min(WINDOW_S, now_s - self._started_at_s), 1e-9),
            first_output_p50_s=_percentile(first_outputs_s, 50),
            first_output_p99_s=_percentile(first_outputs_s, 99),
            end_to_end_p50_s=_percentile([a.end_to_end_s for a in answers if a.error is None], 50),
            cached_ratio=sum(a.cached_tokens or 0 for a in answers) / prompt_tokens if prompt_tokens else None,
            last_error=self._last_error,
        )

    async def _begin_conversations(self) -> None:
        for gap_s, conversation in zip(self._gaps_s, self._conversations, strict=False):
            await asyncio.sleep(gap_s)
            self._tasks.spawn(self._talk(conversation), name=f"demo {conversation.session}")

    async def _talk(self, conversation: Conversation) -> None:
        messages = [{"role": "system", "content": conversation.system}]
        headers = {"x-session-id": conversation.session, "x-user-id": conversation.session}
        for turn in conversation.turns:
            await asyncio.sleep(turn.pause_s)
            messages.append({"role": "user", "content": turn.text})
            body = {"model": self._model, "messages": messages, "max_tokens": turn.output_tokens, "ignore_eos": True}
            answer = await stream_chat("127.0.0.1", self._port, body, headers=headers)
            self._note(answer)
            if answer.error is not None:
                return
            messages.append({"role": "assistant", "content": answer.text})

    def _note(self, answer: TimedAnswer) -> None:
        self._ended.append((monotonic_s(), answer))
        if answer.error is None:
            self._completed += 1
        else:
            self._failed += 1
            self._last_error = answer.error


def _percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]

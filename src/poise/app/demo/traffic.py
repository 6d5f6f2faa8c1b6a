"""The demo's callers: conversations that begin at random, each turn sending along all that was said before."""

import asyncio
from random import Random
from types import TracebackType
from typing import Self

from poise.app.demo.answers import Answers, Summary
from poise.bench.client import stream_chat
from poise.core.clock import monotonic_s
from poise.core.tasks import TaskGroupOwner
from poise.workload.arrivals import poisson_gaps_s
from poise.workload.conversations import Conversation, ConversationMix, conversations


class Traffic:
    """Callers of one gateway, from `async with` to the end of its block, which ends conversations where they are."""

    def __init__(self, port: int, model: str, conversations_per_s: float, random: Random) -> None:
        self._port = port
        self._model = model
        self._gaps_s = poisson_gaps_s(conversations_per_s, random)
        self._conversations = conversations(ConversationMix(), random)
        self._answers = Answers(monotonic_s())
        self._tasks = TaskGroupOwner()

    async def __aenter__(self) -> Self:
        self._tasks.spawn(self._begin_conversations(), name="demo traffic")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()

    def summary(self) -> Summary:
        """What the callers saw up to now."""
        return self._answers.summary(monotonic_s())

    async def _begin_conversations(self) -> None:
        for gap_s, conversation in zip(self._gaps_s, self._conversations, strict=False):
            await asyncio.sleep(gap_s)
            self._tasks.spawn(self._talk(conversation), name=f"demo {conversation.session}")

    async def _talk(self, conversation: Conversation) -> None:
        messages = [{"role": "system", "content": conversation.system}]
        headers = {"x-session-id": conversation.session}
        for turn in conversation.turns:
            await asyncio.sleep(turn.pause_s)
            messages.append({"role": "user", "content": turn.text})
            body = {"model": self._model, "messages": messages, "max_tokens": turn.output_tokens, "ignore_eos": True}
            answer = await stream_chat("127.0.0.1", self._port, body, headers=headers)
            self._answers.add(answer, monotonic_s())
            if answer.error is not None:
                return
            messages.append({"role": "assistant", "content": answer.text})

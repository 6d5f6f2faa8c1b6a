"""Conversations of made-up users: who says how much, and how long the answers are. Text is drawn, not sensible."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

BYTES_PER_TOKEN = 4
"""The field's usual figure for English text."""
_WORDS = tuple(first + second + third for first in "bcdfghjklmnp" for second in "aeiou" for third in "lmnrst")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says after reading the answer before for `pause_s`, and how long an answer they want."""

    text: str
    output_tokens: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """One user's talk with a model. The history that every turn sends along is the caller's to keep."""

    session: str
    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMix:
    """What conversations are like. Means are of exponential distributions, lengths in tokens.

    One in `long_share` begins with a document of `document_tokens`; `systems` system prompts are shared by all.
    """

    systems: int = 4
    system_tokens: int = 300
    turns_mean: float = 4.0
    prompt_tokens_mean: float = 120.0
    output_tokens_mean: float = 120.0
    document_tokens: int = 6000
    long_share: float = 0.2
    pause_s_mean: float = 2.0


def conversations(mix: ConversationMix, random: Random) -> Iterator[Conversation]:
    """Endless conversations, each of a new user."""
    systems = [_text(mix.system_tokens, random) for _ in range(mix.systems)]
    number = 0
    while True:
        number += 1
        count = 1 + round(random.expovariate(1 / max(mix.turns_mean - 1, 1e-9)))
        turns = [_turn(mix, random) for _ in range(count)]
        document = f"{_text(mix.document_tokens, random)} " if random.random() < mix.long_share else ""
        turns[0] = replace(turns[0], text=document + turns[0].text, pause_s=0.0)
        yield Conversation(f"user-{number}", random.choice(systems), tuple(turns))


def _turn(mix: ConversationMix, random: Random) -> Turn:
    return Turn(
        text=_text(_at_least_one(mix.prompt_tokens_mean, random), random),
        output_tokens=_at_least_one(mix.output_tokens_mean, random),
        pause_s=random.expovariate(1 / mix.pause_s_mean),
    )


def _at_least_one(mean: float, random: Random) -> int:
    return max(1, round(random.expovariate(1 / mean)))


def _text(tokens: int, random: Random) -> str:
    """Words of three letters and a space: four bytes, which is one token by the usual figure."""
    return " ".join(random.choices(_WORDS, k=tokens))

"""What passes between the scheduler and whoever lets time pass: a planned step, and what it gave."""

from poise.engine_model.sequence import Sequence


class Chunk:
    """Part of one sequence's prefill: `tokens` after the `past` ones that are computed or cached."""

    __slots__ = ("past", "sequence", "tokens")

    def __init__(self, sequence: Sequence, past: int, tokens: int) -> None:
        self.sequence = sequence
        self.past = past
        self.tokens = tokens


class Batch:
    """What one step computes: prefill chunks, and one token for each of `decodes` over `context_tokens` of context."""

    __slots__ = ("chunks", "context_tokens", "decodes", "step")

    def __init__(self, step: int, chunks: list[Chunk], decodes: int, context_tokens: int) -> None:
        self.step = step
        self.chunks = chunks
        self.decodes = decodes
        self.context_tokens = context_tokens

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return self.decodes + sum(chunk.tokens for chunk in self.chunks)

    @property
    def attention_pairs(self) -> float:
        """Prefill work that grows with the square: tokens times the tokens they attend to."""
        return sum(chunk.tokens * (chunk.past + chunk.tokens / 2) for chunk in self.chunks)


class StepOutput:
    """What a step gave: each of `decoded` and `started` got one token; `finished` are those that ended with it."""

    __slots__ = ("decoded", "finished", "started")

    def __init__(self, decoded: list[Sequence], started: list[Sequence], finished: list[Sequence]) -> None:
        self.decoded = decoded
        self.started = started
        self.finished = finished

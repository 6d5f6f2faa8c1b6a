"""One request inside the engine model: what was asked, what it holds, and when things happened to it."""

from collections.abc import Sequence as SequenceOf
from enum import StrEnum

from poise.core.errors import PoiseError


class SequenceState(StrEnum):
    """Where a sequence is. It ends once, in `FINISHED` or `ABORTED`."""

    NEW = "new"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


class Sequence:
    """A request of `prompt_tokens` (at least 1) that ends after exactly `output_tokens` (at least 1).

    `block_hashes` are the chained hashes of its full blocks: those of the prompt and, as far as they are known, those
    of prompt and output together. Blocks beyond them are never shared. `finish_reason` is what the end will be called.
    Times are None until they happen. The scheduler alone writes the fields below `# written by the scheduler`.
    """

    __slots__ = (
        "admitted_s", "arrived_s", "block_hashes", "block_step", "cached_tokens", "computed_tokens", "end_step",
        "ended_s", "finish_reason", "first_token_s", "generated_tokens", "hashed_blocks", "offset", "order",
        "output_tokens", "owner", "preemptions", "priority", "private_blocks", "prompt_tokens", "state",
        "target_tokens", "visible_step",
    )  # fmt: skip

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        block_hashes: SequenceOf[int] = (),
        *,
        priority: int = 0,
        finish_reason: str = "length",
        owner: object = None,
    ) -> None:
        if prompt_tokens < 1 or output_tokens < 1:
            raise PoiseError(
                f"a sequence of {prompt_tokens} prompt and {output_tokens} output tokens cannot run",
                hint="both must be at least 1",
            )
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.block_hashes = block_hashes
        self.priority = priority
        self.finish_reason = finish_reason
        self.owner = owner
        """Whatever the driver wants to find again at each token; the model never looks at it."""
        # written by the scheduler
        self.state = SequenceState.NEW
        self.order = (priority, 0)
        """Place in the queue: smaller is sooner. Kept over preemption, so a preempted sequence returns to the front."""
        self.visible_step = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache when it was first admitted."""
        self.preemptions = 0
        self.generated_tokens = 0
        """Output tokens, up to date unless it decodes: see `Scheduler.generated_tokens`."""
        self.target_tokens = prompt_tokens
        """Tokens to compute before the next one can be sampled: prompt, and after preemption what was generated."""
        self.computed_tokens = 0
        self.hashed_blocks = 0
        """It references the blocks of its first so many hashes, and `private_blocks` more."""
        self.private_blocks = 0
        self.offset = 0
        """While it decodes: step number minus tokens in the KV cache after that step, a constant."""
        self.block_step = -1
        self.end_step = -1
        self.arrived_s: float | None = None
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.ended_s: float | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens

    @property
    def ended(self) -> bool:
        """Whether it has finished or was aborted."""
        return self.state is SequenceState.FINISHED or self.state is SequenceState.ABORTED

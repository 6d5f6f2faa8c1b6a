"""From a request's body to a sequence in an engine: checks, length, text, cache hashes, placement."""

import asyncio
import random
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

from poise.core.clock import wall_time_s
from poise.engine.answers import Answer
from poise.engine.driver import EngineDriver
from poise.engine.errors import ApiError, bad_value, busy, malformed, rank_out_of_range, unknown_model
from poise.engine.exchange import Exchange
from poise.engine.protocol import EngineProtocol, Request
from poise.engine.requests import Wanted
from poise.engine.settings import EngineSettings
from poise.engine.text import answer_text, block_hashes, cache_seed, token_count
from poise.engine_model.profile import EngineProfile
from poise.engine_model.sequence import Sequence as EngineSequence

OUTPUT_SIGMA = 0.7
"""Spread of the log-normal answer lengths."""

Reader = Callable[[bytes], Wanted]


class Generator:
    """Starts the generating requests of one server."""

    def __init__(
        self, settings: EngineSettings, profile: EngineProfile, drivers: Sequence[EngineDriver], ids: random.Random
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._drivers = drivers
        self._ids = ids
        self._loop = asyncio.get_running_loop()
        self._overhead_s = profile.request_overhead_s / settings.speed

    def start(self, request: Request, connection: EngineProtocol, read: Reader, kind: type[Answer]) -> None:
        """Queue what `request` asks for and send its answer in the shape `kind`, or its error."""
        try:
            wanted = self.read(request, read)
            max_tokens = self._max_tokens(wanted)
        except ApiError as error:
            connection.answer(error.status, kind.error_body(error))
            return
        answer = kind(wanted, self._settings.model, self._request_id(request), int(wall_time_s()))
        rank = self._rank(request, wanted)
        if rank is not None and rank >= len(self._drivers):
            self._refuse(connection, answer, rank_out_of_range(rank, len(self._drivers)))
            return
        driver = self._drivers[rank] if rank is not None else min(self._drivers, key=lambda one: one.load)
        if self._full(driver):
            connection.answer(503, kind.error_body(busy()))
            return
        sequence, text = self._sequence(wanted, max_tokens, _priority(request, wanted))
        exchange = Exchange(answer, text, sequence, driver, connection)
        connection.exchange = exchange
        exchange.open()
        # The limit is checked again when the request reaches the queue: in a burst many get this far, and are refused
        # inside their streams.
        exchange.timer = self._loop.call_later(self._overhead_s, exchange.submit)

    def read(self, request: Request, read: Reader) -> Wanted:
        """The body of `request`, checked against what this server serves. Raises `ApiError`."""
        check_json(request)
        wanted = read(bytes(request.body))
        if wanted.model and wanted.model != self._settings.model:
            raise unknown_model(wanted.model, self._settings.model)
        return wanted

    def _max_tokens(self, wanted: Wanted) -> int:
        """The most tokens that the answer may have. Raises `ApiError` if prompt or answer are too long."""
        longest = self._profile.max_model_len_tokens
        prompt_tokens = token_count(wanted.prompt)
        if prompt_tokens >= longest:
            raise bad_value(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains at least "
                f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce "
                f"the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
                "input_tokens",
            )
        if wanted.max_tokens is not None and prompt_tokens + wanted.max_tokens > longest:
            raise bad_value(
                f"max_tokens={wanted.max_tokens} with a prompt of {prompt_tokens} tokens cannot be greater than "
                f"max_model_len={longest}. Please request fewer output tokens.",
                "max_tokens",
            )
        return wanted.max_tokens or longest - prompt_tokens

    def _sequence(self, wanted: Wanted, max_tokens: int, priority: int) -> tuple[EngineSequence, bytes]:
        seed = self._settings.seed ^ wanted.seed
        tokens = max_tokens if wanted.ignore_eos else min(max_tokens, self._drawn_length(wanted.prompt, seed))
        text = answer_text(wanted.prompt, tokens, seed=seed)
        hashes = block_hashes(
            wanted.prompt + text,
            self._profile.block_size_tokens,
            seed=cache_seed(self._settings.model, wanted.cache_salt),
        )
        finish = "length" if tokens == max_tokens else "stop"
        sequence = EngineSequence(token_count(wanted.prompt), tokens, hashes, priority=priority, finish_reason=finish)
        return sequence, text

    def _drawn_length(self, prompt: bytes, seed: int) -> int:
        chance = random.Random(xxh3_64_intdigest(prompt, seed + 1))
        # exp(mu + sigma^2 / 2) is the mean of a log-normal distribution: this factor has mean 1.
        factor = chance.lognormvariate(-(OUTPUT_SIGMA**2) / 2, OUTPUT_SIGMA)
        return max(1, round(self._settings.output_tokens_mean * factor))

    def _full(self, driver: EngineDriver) -> bool:
        limit = self._profile.limits.max_num_queued_reqs
        return limit is not None and driver.load >= limit

    def _request_id(self, request: Request) -> str:
        given = request.headers.get(b"x-request-id")
        return given.decode("latin-1") if given else f"{self._ids.getrandbits(64):016x}"

    @staticmethod
    def _refuse(connection: EngineProtocol, answer: Answer, error: ApiError) -> None:
        if not answer.wanted.stream:
            connection.answer(error.status, answer.error_body(error))
            return
        connection.begin_stream()
        connection.send_chunk(answer.error_events(error))
        connection.end_stream()

    @staticmethod
    def _rank(request: Request, wanted: Wanted) -> int | None:
        header = request.headers.get(b"x-data-parallel-rank", b"")
        return int(header) if header.isdigit() else wanted.rank


def check_json(request: Request) -> None:
    """Raise `ApiError` unless `request` says that its body is JSON."""
    if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        raise malformed("Unsupported Media Type: Only 'application/json' is allowed", None)


def _priority(request: Request, wanted: Wanted) -> int:
    header = request.headers.get(b"x-vllm-priority", b"")
    return int(header) if header.lstrip(b"-").isdigit() else wanted.priority

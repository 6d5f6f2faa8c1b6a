"""The data path's settings, as `poise.config` fills them; every duration in seconds, every size in bytes."""

from dataclasses import dataclass, field, fields

from poise.admission.idempotency import IdempotencySettings
from poise.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of one request.

    `connect_s`: until the replica has accepted the connection. `first_output_s`: until the first output; a replica that
    is seen to make progress is waited for on, up to `total_s`. `idle_s`: between two reads of an answer that has begun.
    `total_s`: until a plain answer is complete or a stream has begun; a stream that flows is not cut.
    `hold_s`: silence after which a streaming caller is sent a comment, again and again, while the answer is waited for.
    `request_s`: until a caller has sent its whole request (then 408). `keep_alive_s`: how long an idle caller is kept.
    """

    connect_s: float = 2.0
    first_output_s: float = 25.0
    idle_s: float = 25.0
    total_s: float = 600.0
    hold_s: float = 15.0
    request_s: float = 60.0
    keep_alive_s: float = 75.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) > 0:
                seen = getattr(self, limit.name)
                raise ConfigError(f"timeouts.{limit.name} is {seen}", hint="time limits are above 0")


@dataclass(frozen=True, slots=True)
class Limits:
    """Size limits: one request's body (413 above) and head (431 above), all buffered bodies together (503 above).

    `queue` requests may wait for a replica (429 above), each for `queue_timeout_s`.
    """

    body_bytes: int = 64 * 1024 * 1024
    head_bytes: int = 64 * 1024
    buffered_bytes: int = 1024 * 1024 * 1024
    queue: int = 1000
    queue_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """`attempts` is the number of replicas that one request may be sent to in all, 1 for no retry.

    Retries may be `budget_ratio` of the requests of the last 10 s, and `budget_floor` whatever their number.
    """

    attempts: int = 2
    budget_ratio: float = 0.1
    budget_floor: int = 10


@dataclass(frozen=True, slots=True)
class Cors:
    """Which browser origins may call; `*` is any, empty is none (preflight requests are then refused)."""

    allow_origins: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ("*",)
    max_age_s: int = 600


@dataclass(frozen=True, slots=True)
class DataPathSettings:
    """Everything that `DataPath` is told. `reveal_replica` adds `x-poise-replica` and `x-poise-reason` to answers.

    `reuse_port` lets several processes listen on the port.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    reuse_port: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    retry: RetrySettings = field(default_factory=RetrySettings)
    cors: Cors = field(default_factory=Cors)
    idempotency: IdempotencySettings = field(default_factory=IdempotencySettings)
    reveal_replica: bool = True
    decisions_kept: int = 200
    """Recent requests whose decisions can be explained."""

"""The metrics of admission: who waits, and what each API key uses. Keys go by the names that the keys file gives."""

from collections.abc import Callable, Iterable

from poise.admin.exposition import Family, Kind, Sample, escaped
from poise.admission.key_limits import KeyLimits, KeyUse
from poise.admission.queue import CentralQueue

Read = Callable[[CentralQueue, KeyLimits], Iterable[Sample]]


def _key(name: str, kind: Kind, text: str, read: Callable[[KeyUse], float]) -> tuple[Family, Read]:
    return Family(name, kind, text, ("key",)), lambda queue, keys: [
        ((escaped(use.key.name),), read(use)) for use in keys.all()
    ]


def _lengths(queue: CentralQueue, keys: KeyLimits) -> Iterable[Sample]:
    lengths = {0: 0} | queue.lengths()
    return [((str(priority),), count) for priority, count in sorted(lengths.items())]


def _refusals(queue: CentralQueue, keys: KeyLimits) -> Iterable[Sample]:
    return [((escaped(use.key.name), code), count) for use in keys.all() for code, count in use.refusals.items()]


ADMISSION_EXPORTS: tuple[tuple[Family, Read], ...] = (
    (
        Family("poise_queue_length", Kind.GAUGE, "Requests that wait for a replica, by priority.", ("priority",)),
        _lengths,
    ),
    _key("poise_key_requests_total", Kind.COUNTER, "Requests that were let in, by API key.", lambda use: use.requests),
    _key("poise_key_in_flight", Kind.GAUGE, "Requests that have not ended, by API key.", lambda use: use.in_flight),
    _key(
        "poise_key_prompt_tokens_total",
        Kind.COUNTER,
        "Prompt tokens, from usage, by API key.",
        lambda use: use.prompt_tokens,
    ),
    _key(
        "poise_key_output_tokens_total",
        Kind.COUNTER,
        "Output tokens, from usage, by API key.",
        lambda use: use.output_tokens,
    ),
    (
        Family(
            "poise_key_refusals_total",
            Kind.COUNTER,
            "Requests refused because the API key had used up what it may, by API key and error code.",
            ("key", "code"),
        ),
        _refusals,
    ),
)

"""Who waits and what each key uses, as Prometheus reads it; label sets are bounded by the file and by priorities."""

from prometheus_client.parser import text_string_to_metric_families

from poise.admin.metrics import Sources, metrics_page
from poise.admission.api_key import ApiKey
from poise.admission.key_limits import KeyLimits
from poise.admission.queue import CentralQueue, Entry
from poise.core.errors import Refusal
from poise.fleet.fleet import Fleet
from poise.proxy.counters import Counters

Series = dict[tuple[str, ...], float]


class Patient:
    """Never goes on."""

    def take_turn(self) -> bool:
        return False

    def turn_away(self, refusal: Refusal) -> None:
        raise AssertionError


def series(sources: Sources, *names: str) -> Series:
    """Values by name and label values, of the metrics whose names begin so."""
    families = text_string_to_metric_families(metrics_page(sources, 0.0).decode())
    samples = [sample for family in families for sample in family.samples if sample.name.startswith(names)]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def sources(queue: CentralQueue | None = None, keys: KeyLimits | None = None) -> Sources:
    return Sources(Fleet(), Counters(), "random", queue=queue or CentralQueue(9), keys=keys or KeyLimits())


def test_the_queue_by_priority_and_zero_where_nobody_waits() -> None:
    queue = CentralQueue(9)
    assert series(sources(queue), "poise_queue_length") == {("poise_queue_length", "0"): 0}
    for priority, retry in ((0, False), (0, True), (5, False), (-1, False)):
        queue.put(Entry(Patient(), model="m", priority=priority, key=None, tokens=1, retry=retry), 0.0)
    assert series(sources(queue), "poise_queue_length") == {
        ("poise_queue_length", "-1"): 1, ("poise_queue_length", "0"): 2, ("poise_queue_length", "5"): 1,
    }  # fmt: skip


def test_sheds_and_waits_are_counted() -> None:
    page = sources()
    page.counters.sheds = 3
    page.counters.queue_wait_s.observe(0.2)
    found = series(page, "poise_queue_sheds", "poise_queue_wait_seconds_count", "poise_queue_wait_seconds_sum")
    assert found == {
        ("poise_queue_sheds_total",): 3, ("poise_queue_wait_seconds_count",): 1, ("poise_queue_wait_seconds_sum",): 0.2,
    }  # fmt: skip


def test_each_key_goes_by_its_name_and_goes_with_it() -> None:
    keys = KeyLimits()
    keys.apply([ApiKey("a", max_concurrency=1), ApiKey("b")], 0.0)
    use = keys.of("a")
    assert use is not None and use.begin(10, 0.0) is None and use.begin(10, 0.0) is not None
    keys.all()[1].begin(10, 0.0)
    keys.all()[1].end(10, 7, 5, 1.0)
    assert series(sources(keys=keys), "poise_key_") == {
        ("poise_key_requests_total", "a"): 1, ("poise_key_requests_total", "b"): 1,
        ("poise_key_in_flight", "a"): 1, ("poise_key_in_flight", "b"): 0,
        ("poise_key_prompt_tokens_total", "a"): 0, ("poise_key_prompt_tokens_total", "b"): 7,
        ("poise_key_output_tokens_total", "a"): 0, ("poise_key_output_tokens_total", "b"): 5,
        ("poise_key_refusals_total", "a", "key_concurrency"): 1,
    }  # fmt: skip
    keys.apply([], 2.0)
    assert series(sources(keys=keys), "poise_key_") == {}

"""The metrics page: every hole is filled in its place, at every rendering anew."""

from poise.engine.histograms import EngineHistograms, observe_many
from poise.engine.metrics_page import MetricsPage
from poise.engine.server_metrics import HttpCounts, add_process
from poise.engine_model.batch import StepOutput
from poise.engine_model.sequence import Sequence
from poise.report.histogram import Histogram


def lines(page: MetricsPage) -> list[str]:
    return [line for line in page.render().decode().splitlines() if not line.startswith("#")]


def test_holes_are_filled_in_order_and_anew() -> None:
    page = MetricsPage(100.0)
    numbers = [1, 2.5]
    page.counter("requests", "Requests, 100% of them.", ['a="1"', 'a="2"'], lambda: numbers)
    page.gauge("load", "Load.", ['a="1"'], lambda: [numbers[0] * 10])
    page.constant('info{note="5%"}', 1)
    expected = [
        'requests_total{a="1"} 1.0',
        'requests_total{a="2"} 2.5',
        'requests_created{a="1"} 100.0',
        'requests_created{a="2"} 100.0',
        'load{a="1"} 10.0',
        'info{note="5%"} 1.0',
    ]
    assert lines(page) == expected
    numbers[0] = 3
    assert lines(page)[0] == 'requests_total{a="1"} 3.0'
    assert "# HELP requests_total Requests, 100% of them.\n# TYPE requests_total counter\n" in page.render().decode()


def test_histograms_are_cumulative_with_labels_in_order() -> None:
    page, histogram = MetricsPage(1.0), Histogram((1.0, 2.0))
    page.histogram("wait", "Wait.", {'engine="0",model_name="m"': histogram})
    for value in (0.5, 1.5, 1.5, 9.0):
        histogram.observe(value)
    assert lines(page) == [
        'wait_bucket{engine="0",le="1.0",model_name="m"} 1.0',
        'wait_bucket{engine="0",le="2.0",model_name="m"} 3.0',
        'wait_bucket{engine="0",le="+Inf",model_name="m"} 4.0',
        'wait_count{engine="0",model_name="m"} 4.0',
        'wait_sum{engine="0",model_name="m"} 12.5',
        'wait_created{engine="0",model_name="m"} 1.0',
    ]


def test_many_at_once_count_as_many_one_by_one() -> None:
    at_once, one_by_one = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    observe_many(at_once, 1.5, 3)
    for _ in range(3):
        one_by_one.observe(1.5)
    assert (at_once.counts, at_once.total) == (one_by_one.counts, one_by_one.total)


def test_a_finished_request_is_measured_in_all_its_parts() -> None:
    histograms, sequence = EngineHistograms(), Sequence(10, 5)
    sequence.arrived_s, sequence.admitted_s, sequence.first_token_s, sequence.ended_s = 1.0, 2.0, 4.0, 8.0
    sequence.cached_tokens, sequence.generated_tokens = 4, 1
    histograms.step(StepOutput([], [sequence], []), 10, 2.0)
    histograms.step(StepOutput([sequence], [], [sequence]), 1, 1.0)
    totals = {name: histogram.total for name, histogram in histograms.by_name.items() if histogram.count}
    assert totals == {
        "time_to_first_token_seconds": 3.0,
        "inter_token_latency_seconds": 1.0,
        "iteration_tokens_total": 11,
        "e2e_request_latency_seconds": 7.0,
        "request_queue_time_seconds": 1.0,
        "request_inference_time_seconds": 6.0,
        "request_prefill_time_seconds": 2.0,
        "request_decode_time_seconds": 4.0,
        "request_time_per_output_token_seconds": 1.0,
        "request_prompt_tokens": 10,
        "request_generation_tokens": 5,
        "request_max_num_generation_tokens": 5,
        "request_params_n": 1,
        "request_params_max_tokens": 5,
        "request_num_preemptions": 0,
        "request_prefill_kv_computed_tokens": 6,
    }


def test_answers_are_counted_by_route_and_status() -> None:
    page, http = MetricsPage(1.0), HttpCounts([("POST", "/v1/a"), ("GET", "/v1/b")])
    http.add_to(page)
    http.finished("POST", "/v1/a", 200, 0.2)
    http.finished("POST", "/v1/a", 503, 0.01)
    http.finished("GET", "/nowhere", 404, 0.01)
    found = lines(page)
    assert 'http_requests_total{handler="/v1/a",method="POST",status="2xx"} 1.0' in found
    assert 'http_requests_total{handler="/v1/a",method="POST",status="5xx"} 1.0' in found
    assert 'http_requests_total{handler="/v1/b",method="GET",status="2xx"} 0.0' in found
    assert 'http_request_duration_seconds_bucket{handler="/v1/a",le="0.1",method="POST"} 1.0' in found
    assert 'http_request_duration_highr_seconds_bucket{le="+Inf"} 3.0' in found
    assert "http_request_duration_highr_seconds_count 3.0" in found


def test_the_process_says_when_it_began() -> None:
    page = MetricsPage(5.0)
    add_process(page, 5.0)
    assert "process_start_time_seconds 5.0" in lines(page)
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines(page))

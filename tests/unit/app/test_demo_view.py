"""The demo's table and lines say what the fleet says, and a dash for what it does not."""

from io import StringIO

import pytest
from rich.console import Console

from poise.app.demo.answers import Answers, Summary
from poise.app.demo.view import live_view, plain_line, traffic_line
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.fleet.fleet import Fleet

SUMMARY = Summary(
    completed=12,
    failed=0,
    last_error=None,
    completed_per_s=1.25,
    first_output_p50_s=0.0904,
    first_output_p99_s=1.26,
    end_to_end_p50_s=2.0,
    cached_ratio=0.5,
)


def fleet_with(kv_usage_ratio: float) -> Fleet:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.join(ReplicaSpec(name, parse_replica_url(f"http://{name}:1")))
    a = fleet.at(0)
    for queries, hits in ((100, 100), (300, 150)):
        fleet.scrape_began(a)
        fleet.scraped(a, LoadReading(3, 2, kv_usage_ratio, prefix_queries_tokens=queries, prefix_hits_tokens=hits), 1.0)
    return fleet


def shown(fleet: Fleet, *, colours: bool = False) -> str:
    console = Console(file=StringIO(), width=100, force_terminal=colours, color_system="standard" if colours else None)
    console.print(live_view(fleet, SUMMARY))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{name} ")]
    return line.split()


def test_the_table_shows_every_replica_and_what_is_unknown_as_such() -> None:
    text = shown(fleet_with(0.5))
    assert cells(text, "a") == ["a", "ready", "3", "2", "██████░░░░░░", "50%", "25%", "0", "0"]
    assert cells(text, "b") == ["b", "ready", "-", "-", "unknown", "-", "0", "0"]
    assert traffic_line(SUMMARY) in text


@pytest.mark.parametrize(("ratio", "code"), [(0.8, "32"), (0.84, "33"), (0.85, "33"), (0.86, "31"), (1.0, "31")])
def test_kv_usage_is_green_in_comfort_yellow_above_and_red_over_the_throttle(ratio: float, code: str) -> None:
    assert f"\x1b[{code}m█" in shown(fleet_with(ratio), colours=True)


def test_a_line_says_it_all() -> None:
    assert plain_line(fleet_with(0.5), SUMMARY, 5.2) == (
        "5 s   12 answers   1.2 requests/s   TTFT p50 90 ms p99 1.3 s   E2E p50 2.0 s   prompt cached 50%   "
        "a running 3 waiting 2 KV 50% hits 25% | b running - waiting - KV - hits -"
    )


def test_failures_are_said_and_nothing_is_a_dash() -> None:
    answers = Answers(0.0)
    assert traffic_line(answers.summary(1.0)) == (
        "0 answers   0.0 requests/s   TTFT p50 - p99 -   E2E p50 -   prompt cached -"
    )

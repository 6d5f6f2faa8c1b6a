"""What the demo shows: the fleet and its traffic, as a table for terminals and as a line for everything else."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poise.app.demo.answers import Summary
from poise.core.reading import LoadReading
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica

BAR_WIDTH = 12
COMFORT_RATIO = 0.8
"""KV usage up to which a replica keeps what it has cached; it is shown in green up to here."""


def live_view(fleet: Fleet, traffic: Summary) -> RenderableType:
    """The whole view."""
    table = Table()
    for column in ("replica", "state", "running", "waiting", "KV usage", "prefix hits", "in flight", "requests"):
        table.add_column(column, justify="left" if column in ("replica", "state", "KV usage") else "right")
    for replica in fleet:
        table.add_row(*_row(replica, fleet.kv_throttle_ratio))
    return Group(table, Text(traffic_line(traffic)))


def _row(replica: Replica, throttle_ratio: float) -> list[Text | str]:
    reading = replica.reading or LoadReading()
    return [
        replica.name,
        str(replica.state),
        _number(reading.running),
        _number(reading.waiting),
        _bar(reading.kv_usage_ratio, throttle_ratio),
        _percent(hit_ratio(replica)),
        str(replica.in_flight),
        str(sum(replica.outcomes.values())),
    ]


def traffic_line(traffic: Summary) -> str:
    """What callers see, in one line."""
    failed = f"   {traffic.failed} failed, last: {traffic.last_error}" if traffic.failed else ""
    return (
        f"{traffic.completed} answers   {traffic.completed_per_s:.1f} requests/s   "
        f"TTFT p50 {_seconds(traffic.first_output_p50_s)} p99 {_seconds(traffic.first_output_p99_s)}   "
        f"E2E p50 {_seconds(traffic.end_to_end_p50_s)}   prompt cached {_percent(traffic.cached_ratio)}{failed}"
    )


def plain_line(fleet: Fleet, traffic: Summary, elapsed_s: float) -> str:
    """The whole view in one line."""
    replicas = " | ".join(
        f"{replica.name} running {_number(reading.running)} waiting {_number(reading.waiting)} "
        f"KV {_percent(reading.kv_usage_ratio)} hits {_percent(hit_ratio(replica))}"
        for replica in fleet
        for reading in [replica.reading or LoadReading()]
    )
    return f"{elapsed_s:.0f} s   {traffic_line(traffic)}   {replicas}"


def hit_ratio(replica: Replica) -> float | None:
    """Share of prompt tokens that the replica found in its prefix cache since it started."""
    reading = replica.reading or LoadReading()
    if not reading.prefix_queries_tokens or reading.prefix_hits_tokens is None:
        return None
    return reading.prefix_hits_tokens / reading.prefix_queries_tokens


def _bar(ratio: float | None, throttle_ratio: float) -> Text | str:
    if ratio is None:
        return "unknown"
    filled = round(min(ratio, 1.0) * BAR_WIDTH)
    style = "green" if ratio <= COMFORT_RATIO else "yellow" if ratio <= throttle_ratio else "red"
    return Text.assemble(("█" * filled, style), ("░" * (BAR_WIDTH - filled), "dim"), f" {_percent(ratio):>4}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"

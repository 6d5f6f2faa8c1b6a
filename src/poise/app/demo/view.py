"""What the demo shows: the fleet and its traffic, as a table for terminals and as a line for everything else."""

from rich.console import Group, RenderableType
from rich.text import Text

from poise.admin.fleet_page import fleet_page
from poise.app import replica_table as shown
from poise.app.demo.answers import Summary
from poise.app.replica_table import Column, Row, number, percent, seconds
from poise.fleet.fleet import Fleet

_REQUESTS = Column("requests", lambda row: number(sum(row["requests"].values())))


def live_view(fleet: Fleet, traffic: Summary) -> RenderableType:
    """The whole view."""
    columns = (
        shown.NAME, shown.STATE, shown.RUNNING, shown.WAITING, shown.kv_usage(fleet.kv_throttle_ratio),
        shown.PREFIX_HITS, shown.IN_FLIGHT, _REQUESTS,
    )  # fmt: skip
    return Group(shown.replica_table(_rows(fleet), columns), Text(traffic_line(traffic)))


def traffic_line(traffic: Summary) -> str:
    """What callers see, in one line."""
    failed = f"   {traffic.failed} failed, last: {traffic.last_error}" if traffic.failed else ""
    return (
        f"{traffic.completed} answers   {traffic.completed_per_s:.1f} requests/s   "
        f"TTFT p50 {seconds(traffic.first_output_p50_s)} p99 {seconds(traffic.first_output_p99_s)}   "
        f"E2E p50 {seconds(traffic.end_to_end_p50_s)}   prompt cached {percent(traffic.cached_ratio)}{failed}"
    )


def plain_line(fleet: Fleet, traffic: Summary, elapsed_s: float) -> str:
    """The whole view in one line."""
    replicas = " | ".join(
        f"{row['name']} running {number(row['running'])} waiting {number(row['waiting'])} "
        f"KV {percent(row['kv_usage_ratio'])} hits {percent(row['prefix_hit_ratio'])}"
        for row in _rows(fleet)
    )
    return f"{elapsed_s:.0f} s   {traffic_line(traffic)}   {replicas}"


def _rows(fleet: Fleet) -> list[Row]:
    rows: list[Row] = fleet_page(fleet, 0.0)["replicas"]
    return rows

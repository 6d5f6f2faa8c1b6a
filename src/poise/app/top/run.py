"""`poise top`: a gateway at work, seen through its admin port, again and again or once."""

import json
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from poise.app import replica_table as shown
from poise.app.replica_table import Cell, Column, Row, percent, seconds
from poise.app.top.admin_api import AdminApi, AdminError
from poise.app.top.report import Look, read_look, report
from poise.core.clock import monotonic_s

COLUMNS = (
    shown.NAME,
    Column("state", lambda row: state(row), is_text=True),
    shown.kv_usage(),
    shown.RUNNING._replace(heading="run"),
    shown.WAITING._replace(heading="wait"),
    shown.IN_FLIGHT._replace(heading="sent"),
    shown.PREFIX_HITS._replace(heading="hits"),
    Column("req/s", lambda row: f"{row['requests_per_s']:.1f}"),
    Column("err/s", lambda row: f"{row['errors_per_s']:.1f}"),
)


def show_once(api: AdminApi, interval_s: float, console: Console, *, as_json: bool) -> None:
    """Show what happens within `interval_s`, and return. Raises `AdminError`."""
    before = _look(api)
    time.sleep(interval_s)
    seen = report(before, _look(api))
    if as_json:
        console.print(json.dumps(seen, indent=2), highlight=False, markup=False, soft_wrap=True)
    else:
        console.print(view(seen))


def show_live(api: AdminApi, interval_s: float, console: Console) -> None:
    """Show what happens every `interval_s`, until interrupted. Raises `AdminError` if the first look fails: later the
    view says so, and goes on as soon as the gateway is back."""
    before = _look(api)
    with Live(view(report(before, before)), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            time.sleep(interval_s)
            try:
                now = _look(api)
            except AdminError as error:
                live.update(Text(str(error), "red"), refresh=True)
                continue
            live.update(view(report(before, now)), refresh=True)
            before = now


def _look(api: AdminApi, clock: Callable[[], float] = monotonic_s) -> Look:
    fleet, page = api.fleet(), api.metrics()
    return read_look(clock(), fleet, page)


def view(seen: dict[str, Any]) -> RenderableType:
    """The whole view of one report."""
    return Group(shown.replica_table(seen["replicas"], COLUMNS), Text(gateway_lines(seen["gateway"])))


def state(row: Row) -> Cell:
    """The replica's state, and its breaker's where that keeps requests away."""
    breaker = row["breaker"]
    return str(row["state"]) if breaker in (None, "closed") else Text(f"{row['state']}/{breaker}", "red")


def gateway_lines(gateway: dict[str, Any]) -> str:
    """What callers see, and how evenly the load lies."""
    return (
        f"poise {gateway['version']}, {gateway['policy']}: {gateway['requests_per_s']:.1f} requests/s, "
        f"{gateway['errors_per_s']:.1f} errors/s, {gateway['retries_per_s']:.1f} retries/s, "
        f"{shown.number(gateway['in_flight'])} open, "
        f"{shown.number(gateway['queue_length'])} queued\n"
        f"TTFT p50 {seconds(gateway['first_output_p50_s'])} p99 {seconds(gateway['first_output_p99_s'])}, "
        f"E2E p50 {seconds(gateway['end_to_end_p50_s'])} p99 {seconds(gateway['end_to_end_p99_s'])}, "
        f"in comfort {percent(gateway['comfort_band_replicas_ratio'])}, "
        f"spread {percent(gateway['kv_usage_spread_ratio'])}"
    )

"""`poise top`: a gateway at work, seen through its admin port, again and again or once."""

import json
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from poise.app import replica_table as shown
from poise.app.replica_table import Column, percent, seconds
from poise.app.top.admin_api import AdminApi, AdminError
from poise.app.top.report import Look, read_look, report
from poise.core.clock import monotonic_s

COLUMNS = (
    shown.NAME,
    shown.STATE,
    Column("breaker", lambda row: str(row["breaker"] or "-"), is_text=True),
    shown.kv_usage(),
    shown.RUNNING,
    shown.WAITING,
    shown.IN_FLIGHT,
    shown.PREFIX_HITS,
    Column("requests/s", lambda row: f"{row['requests_per_s']:.1f}"),
    Column("errors/s", lambda row: f"{row['errors_per_s']:.1f}"),
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
    return Group(shown.replica_table(seen["replicas"], COLUMNS), Text(gateway_line(seen["gateway"])))


def gateway_line(gateway: dict[str, Any]) -> str:
    """What callers see, and how evenly the load lies, in one line."""
    return (
        f"poise {gateway['version']}, {gateway['policy']}   {gateway['requests_per_s']:.1f} requests/s   "
        f"{gateway['errors_per_s']:.1f} errors/s   {gateway['retries_per_s']:.1f} retries/s   "
        f"in flight {shown.number(gateway['in_flight'])}   "
        f"TTFT p50 {seconds(gateway['first_output_p50_s'])} p99 {seconds(gateway['first_output_p99_s'])}   "
        f"E2E p50 {seconds(gateway['end_to_end_p50_s'])} p99 {seconds(gateway['end_to_end_p99_s'])}   "
        f"KV in comfort band {percent(gateway['comfort_band_replicas_ratio'])}, "
        f"spread {percent(gateway['kv_usage_spread_ratio'])}"
    )

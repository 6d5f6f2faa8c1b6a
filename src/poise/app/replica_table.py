"""Replicas as a table for terminals. A row is what `/api/fleet` says of one replica; what is unknown is a dash."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 12
COMFORT_RATIO, THROTTLE_RATIO = 0.8, 0.85
"""KV usage up to which a replica keeps what it has cached, shown in green, and above which it gets nothing, in red."""

Row = Mapping[str, Any]
Cell = Text | str


class Column(NamedTuple):
    """A heading and what is shown of a replica below it. Text is aligned left, numbers right."""

    heading: str
    cell: Callable[[Row], Cell]
    is_text: bool = False


def replica_table(rows: Iterable[Row], columns: Sequence[Column]) -> Table:
    """One line for each replica, narrow enough for 80 columns if names are short."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def kv_bar(ratio: float | None, throttle_ratio: float = THROTTLE_RATIO) -> Cell:
    """KV usage as a bar: green up to the end of the comfort band, yellow to the throttle, red above."""
    if ratio is None:
        return "unknown"
    filled = round(min(ratio, 1.0) * BAR_WIDTH)
    style = "green" if ratio <= COMFORT_RATIO else "yellow" if ratio <= throttle_ratio else "red"
    return Text.assemble(("█" * filled, style), ("░" * (BAR_WIDTH - filled), "dim"), f" {percent(ratio):>4}")


def number(value: float | None) -> str:
    """A whole number."""
    return "-" if value is None else f"{value:.0f}"


def percent(ratio: float | None) -> str:
    """0..1 as a percentage."""
    return "-" if ratio is None else f"{ratio:.0%}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "-"
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


NAME = Column("replica", lambda row: str(row["name"]), is_text=True)
STATE = Column("state", lambda row: str(row["state"]), is_text=True)
RUNNING = Column("running", lambda row: number(row["running"]))
WAITING = Column("waiting", lambda row: number(row["waiting"]))
PREFIX_HITS = Column("prefix hits", lambda row: percent(row["prefix_hit_ratio"]))
IN_FLIGHT = Column("in flight", lambda row: number(row["in_flight"]))


def kv_usage(throttle_ratio: float = THROTTLE_RATIO) -> Column:
    """The bar, red above `throttle_ratio`."""
    return Column("KV usage", lambda row: kv_bar(row["kv_usage_ratio"], throttle_ratio), is_text=True)

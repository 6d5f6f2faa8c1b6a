"""How long Poise takes to choose a replica: `decision_time.py` in a process of its own on the router's core."""

import json
import subprocess
import sys
from typing import Any

from harness.machine import ROUTER_CORE
from harness.routers import ROOT, ROUTERS
from harness.scenario import Column

NAME = "decision_time"
COLUMNS = (
    Column("p99_us", "p99, us", "{:.1f}"),
    Column("p50_us", "p50, us", "{:.1f}"),
    Column("choice_p99_us", "p99 without reading the body, us", "{:.1f}"),
    Column("choice_p50_us", "p50 without reading the body, us", "{:.1f}"),
)


def measure() -> dict[str, dict[str, float]]:
    """The times in microseconds of each case. Raises CalledProcessError."""
    command = ["taskset", "-c", str(ROUTER_CORE), sys.executable, str(ROOT / "benchmarks" / "decision_time.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    times: dict[str, dict[str, float]] = json.loads(done.stdout)
    return times


def document(about: dict[str, Any]) -> dict[str, Any]:
    """The scenario's file, its cases in the place of routers."""
    version = ROUTERS["poise"].version()
    rows = {
        case: {"version": version, "absent": None, "void": None, "note": None, "medians": times, "ratio_of_base": None}
        for case, times in measure().items()
    }
    return {
        "scenario": NAME,
        "title": "Time to choose a replica",
        "how": "in one process: the body read into facts, soft_affinity's choice, the ticket; with open requests and "
        "scrapes between",
        "higher_is_better": False,
        "columns": [{"value": c.value, "heading": c.heading, "form": c.form} for c in COLUMNS],
        "base": "poise",
        "about": about,
        "routers": rows,
    }

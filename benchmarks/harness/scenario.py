"""What a scenario is: an upstream, one measurement of one running router, and the figures to show."""

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.load import UpstreamSettings
from harness.machine import Meter, Usage
from harness.processes import Program
from harness.routers import WORK

REQUESTS = WORK / "run" / "requests"
"""Where the raw requests for the load tools are written."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long things take. `rate_per_s` is the open loop's rate, known once the base router's maximum is."""

    window_s: float = 4.0
    quick: bool = False
    rate_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: figures by name. `problem` says why it counts for nothing, `note` what a reader must know."""

    values: dict[str, float]
    problem: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A router that is up (`program` None: the load goes straight to a replica) and its upstream."""

    name: str
    port: int
    program: Program | None
    upstream: Program

    def meter(self, *load: Program) -> Meter:
        """Starts counting what the router, the upstream and `load` use."""
        sessions = [self.upstream.session, *(program.session for program in load)]
        return Meter(self.program.session if self.program else None, sessions)


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in the table: the value's name, the heading with its unit, how it is printed."""

    value: str
    heading: str
    form: str = "{:.0f}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question about routers and how it is answered. The first column is the one that ratios are of."""

    name: str
    title: str
    how: str
    upstream: UpstreamSettings
    measure: Callable[[Running, Plan], Sample]
    columns: tuple[Column, ...]
    higher_is_better: bool = False
    routers: tuple[str, ...] = field(default=("poise", "haproxy", "nginx", "vllm-router", "sglang-router", "litellm"))
    rounds: int = 3
    needs_rate: bool = False


def judged(values: dict[str, float], usage: Usage, failed_ratio: float, note: str | None = None) -> Sample:
    """A sample, void where the machine was not quiet; failed answers are noted, since they cost less than good ones."""
    values = values | {"router_core_busy_ratio": usage.router_core_busy_ratio, "foreign_ratio": usage.foreign_ratio}
    values |= {"load_core_busy_ratio": usage.load_core_busy_ratio}
    if failed_ratio > 0.001:
        note = f"{failed_ratio:.1%} of the answers failed" + (f"; {note}" if note else "")
    return Sample(values, usage.problem(), note)

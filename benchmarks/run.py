"""Measures Poise beside other routers: the same upstream, one core for the router, one for upstream and load.

`make bench` runs it whole. To profile: `benchmarks/run.py --only requests --routers poise,haproxy --rounds 3`.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import load, machine, results
from harness.plot import plot
from harness.processes import StartError, port_is_free, raise_priority
from harness.report import page, section
from harness.results import RouterResult
from harness.routers import DIRECT, PORT, REPLICA_PORT, ROOT, ROUTERS, WORK, Router, from_command, python_version
from harness.scenario import Plan, Running, Sample, Scenario
from scenarios import decision, latency, memory, requests, streams

SCENARIOS = {s.name: s for s in (requests.SCENARIO, streams.SCENARIO, *latency.SCENARIOS, memory.SCENARIO)}
NAMES = (*SCENARIOS, decision.NAME)
RETRIES = 2
"""How often a void sample is taken again at once."""
QUIET_DEADLINE_S = 15.0
"""How long each sample waits for a quiet machine before it is tried all the same."""


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAMES", help=f"scenarios, with commas: {', '.join(NAMES)}")
    parser.add_argument("--routers", metavar="NAMES", help=f"with commas: {', '.join([*ROUTERS, DIRECT])}")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds over all routers (default: 3, memory 1)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="length of one window (default: 4)")
    parser.add_argument("--quick", action="store_true", help="one round of two-second windows: does it work")
    parser.add_argument("--base", default=results.BASE, metavar="NAME", help="ratios are of it (default: poise)")
    parser.add_argument(
        "--rate", type=float, metavar="PER_S", help="open-loop rate (default: half of the base's maximum)"
    )
    parser.add_argument(
        "--command",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more router; {port}, {replica_ports} and {replica_urls} are filled in",
    )
    parser.add_argument(
        "--accept-noise", action="store_true", help="count void samples too: for a look, never to quote"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: benchmarks/results for a whole run")
    return parser.parse_args()


class Bench:
    """One run of the harness: which routers, how long, and what came out."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.routers = dict(ROUTERS)
        for text in arguments.command:
            name, _, template = text.partition("=")
            self.routers[name] = from_command(name, template)
        self.plan = Plan(2.0 if arguments.quick else arguments.seconds, arguments.quick, arguments.rate or 0.0)
        self.documents: list[dict[str, Any]] = []
        self._versions: dict[str, str] = {}

    def names(self, scenario: Scenario) -> list[str]:
        """The routers of a scenario, in the order that they take turns."""
        if self.arguments.routers:
            return [name for name in self.arguments.routers.split(",") if name != DIRECT or scenario.name != "memory"]
        return [*scenario.routers, *(text.partition("=")[0] for text in self.arguments.command)]

    def run(self, scenario: Scenario) -> None:
        """Takes all samples of a scenario, router by router, round by round."""
        say(f"{scenario.title}")
        if scenario.needs_rate and not self.plan.rate_per_s:
            self.plan = replace(self.plan, rate_per_s=self._half_of_maximum())
        found = {name: RouterResult(name) for name in self.names(scenario)}
        rounds = self.arguments.rounds or (1 if self.plan.quick else scenario.rounds)
        for number in range(rounds):
            for name, result in found.items():
                if not result.absent and not (number and name in self.routers and self.routers[name].slow):
                    self._add_sample(scenario, result)
        about = machine.describe(python_version()) | {"window": f"{self.plan.window_s:g} s", "rounds": rounds}
        if scenario.needs_rate:
            about["rate"] = f"{self.plan.rate_per_s:.0f} requests/s"
        self.documents.append(results.to_json(scenario, list(found.values()), about, self.arguments.base))

    def _half_of_maximum(self) -> float:
        """Half of the base's requests/s, from this run where it was measured, else from one sample now."""
        for document in self.documents:
            medians = document["routers"].get(self.arguments.base, {}).get("medians")
            if document["scenario"] == "requests" and medians:
                return float(medians["requests_per_s"]) / 2
        result = RouterResult(self.arguments.base)
        self._add_sample(requests.SCENARIO, result)
        if not result.medians:
            sys.exit(f"the maximum of {result.name} is unknown: {result.absent or result.void}\nhint: give --rate")
        return result.medians["requests_per_s"] / 2

    def _add_sample(self, scenario: Scenario, result: RouterResult) -> None:
        router = self.routers.get(result.name)
        if router is None and result.name != DIRECT:
            sys.exit(f"no router is called {result.name}\nhint: one of {', '.join([*self.routers, DIRECT])}")
        result.absent = router.absent() if router else None
        if result.absent:
            say(f"  {result.name}: {result.absent}")
            return
        result.version = self._version(router)
        for _ in range(1 if router and router.slow else 1 + RETRIES):
            machine.wait_until_quiet(QUIET_DEADLINE_S)
            try:
                sample = self._sample(scenario, router)
                if self.arguments.accept_noise and sample.problem:
                    sample = replace(sample, problem=None, note=f"noisy: {sample.problem}")
            except (StartError, RuntimeError) as error:
                result.absent = str(error)
                say(f"  {result.name}: {error}")
                return
            result.samples.append(sample)
            say(f"  {result.name}: {_shown(scenario, sample)}")
            if sample.problem is None:
                return

    def _sample(self, scenario: Scenario, router: Router | None) -> Sample:
        with load.start_upstream(scenario.upstream) as upstream:
            if router is None:
                return scenario.measure(Running(DIRECT, REPLICA_PORT, None, upstream), self.plan)
            with router.start(scenario.upstream.ports) as program:
                return scenario.measure(Running(router.name, PORT, program, upstream), self.plan)

    def _version(self, router: Router | None) -> str:
        if router is None:
            return ""
        if router.name not in self._versions:
            self._versions[router.name] = router.version()
        return self._versions[router.name]


def _shown(scenario: Scenario, sample: Sample) -> str:
    figures = ", ".join(
        f"{column.form.format(sample.values[column.value])} {column.heading}" for column in scenario.columns
    )
    busy = ", ".join(f"{sample.values[f'{core}_core_busy_ratio']:.0%} {core}" for core in ("router", "load"))
    return f"{figures} ({busy})" + "".join(f"; {text}" for text in (sample.note, sample.problem) if text)


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Runs what was asked for. 1 where a figure is void or a router of the base is missing."""
    arguments = parse_arguments()
    names = arguments.only.split(",") if arguments.only else list(NAMES)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"no scenario is called {', '.join(unknown)}\nhint: one of {', '.join(NAMES)}")
    if not (port_is_free(PORT) and port_is_free(REPLICA_PORT)):
        sys.exit(f"port {PORT} or {REPLICA_PORT} is in use\nhint: another benchmark may be running")
    os.chdir(ROOT)
    os.sched_setaffinity(0, {machine.LOAD_CORE})
    raise_priority(os.getpid())
    load.build()
    bench = Bench(arguments)
    started = time.monotonic()
    for name in names:
        if name == decision.NAME:
            bench.documents.append(decision.document(machine.describe(python_version())))
        else:
            bench.run(SCENARIOS[name])
    say(f"took {time.monotonic() - started:.0f} s")
    parts = (arguments.only, arguments.routers, arguments.quick, arguments.command, arguments.accept_noise)
    whole = not any(parts)
    return publish(
        bench.documents, arguments.output or (ROOT / "benchmarks" / "results" if whole else WORK / "results")
    )


def publish(documents: list[dict[str, Any]], directory: Path) -> int:
    """Writes files, page and plot, prints the tables of this run. 1 where something is void."""
    for document in documents:
        results.write(directory, document)
        print("\n".join(section(document)))
    known = results.read_all(directory, list(NAMES))
    (directory / "README.md").write_text(page(known))
    try:
        plot(known, directory / "results.png")
    except ImportError:
        say("no plot: matplotlib is not installed\nhint: pip install '.[bench]'")
    say(f"written to {directory}")
    void = [
        f"{name} in {document['scenario']}"
        for document in documents
        for name, router in document["routers"].items()
        if router["void"]
    ]
    if void:
        say(f"void: {', '.join(void)}\nhint: run it again when the machine is quiet")
    lost = [d["scenario"] for d in documents if (base := d["routers"].get(d["base"])) and base["absent"]]
    if lost:
        say(f"nothing to compare with in {', '.join(lost)}: the base could not be measured")
    return 1 if void or lost else 0


if __name__ == "__main__":
    sys.exit(main())

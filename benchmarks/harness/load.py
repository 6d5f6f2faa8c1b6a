"""The load: wrk (closed loop, its own figures) and the native client in `upstream/load.c` (open loop, streams)."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.machine import LOAD_CORE
from harness.processes import Program, get
from harness.routers import REPLICA_PORT, ROOT, WORK

BUILD = ROOT / "benchmarks" / "build"
PAGE = ROOT / "benchmarks" / "data" / "metrics_page.txt"
CHAT_LUA = ROOT / "benchmarks" / "chat.lua"

Figures = dict[str, Any]


def build() -> None:
    """Compiles the native programs where their sources are newer. Raises CalledProcessError."""
    subprocess.run(["make", "--silent", "-C", str(ROOT / "benchmarks" / "upstream")], check=True)


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """What the stub replicas do; see `upstream/upstream.c`."""

    replicas: int = 8
    chunks: int = 64
    gap_us: int = 0
    ttft_us: int = 0

    @property
    def ports(self) -> list[int]:
        """Where the replicas listen."""
        return [REPLICA_PORT + i for i in range(self.replicas)]


def start_upstream(settings: UpstreamSettings) -> Program:
    """Starts the stub replicas on the load's core. Raises StartError."""
    command = [str(BUILD / "upstream"), "--port", str(REPLICA_PORT), "--count", str(settings.replicas)]
    command += ["--chunks", str(settings.chunks), "--gap-us", str(settings.gap_us), "--ttft-us", str(settings.ttft_us)]
    program = Program([*command, "--metrics-page", str(PAGE)], LOAD_CORE, WORK / "logs" / "upstream.log")
    try:
        program.wait_until_answers(f"http://127.0.0.1:{REPLICA_PORT}/health", 5)
    except BaseException:
        program.stop()
        raise
    return program


def upstream_stats() -> dict[str, int]:
    """What the stub replicas have served, asked of them directly."""
    body = get(f"http://127.0.0.1:{REPLICA_PORT}/stats")
    if body is None:
        raise RuntimeError("the upstream does not answer /stats")
    stats: dict[str, int] = json.loads(body)
    return stats


def wrk(port: int, request: Path, connections: int, duration_s: float, distinct: int = 512) -> Figures:
    """A closed-loop run. Raises RuntimeError when wrk fails."""
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", f"-d{duration_s:.0f}s"]
    command += ["--timeout", "30s", "-s", str(CHAT_LUA), f"http://127.0.0.1:{port}/"]
    environment = {**os.environ, "REQUEST_FILE": str(request), "DISTINCT": str(distinct)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=duration_s + 60, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"wrk gave no figures: {done.stdout[-200:]} {done.stderr[-200:]}")
    figures: Figures = json.loads(lines[-1])
    return figures


class LoadRun:
    """A run of the native client. It goes on by itself; `latest` tells how far it is, `finish` gives its results."""

    def __init__(self, port: int, request: Path, flags: Mapping[str, float | int | str]) -> None:
        command = [str(BUILD / "load"), "--port", str(port), "--request", str(request)]
        command += [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        self.program = Program(command, LOAD_CORE, WORK / "logs" / "load.log")

    def reports(self) -> list[Figures]:
        """Every line so far; a line being written is left out."""
        whole, _, _ = self.program.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def latest(self) -> Figures | None:
        """The last line so far."""
        whole, _, _ = self.program.log.read_text().rpartition("\n")
        line = whole.rpartition("\n")[2]
        return json.loads(line) if line.startswith("{") else None

    def finish(self, timeout_s: float) -> Figures:
        """Waits until it ends and returns its last line. Raises RuntimeError where it has none."""
        self.program.wait(timeout_s)
        reports = self.reports()
        if not reports or "final" not in reports[-1]:
            raise RuntimeError(f"the load client gave no result: {self.program.log.read_text()[-300:]}")
        return reports[-1]

"""What the machine did during a measurement: CPU of cores and of process groups, memory, and whether it was quiet."""

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

ROUTER_CORE = 0
LOAD_CORE = 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

MAX_FOREIGN_RATIO = 0.10
"""Share of a core that may go to others than the benchmark's processes; above it a sample is void. Half of it is for
loopback's own interrupt work, which no process is charged: 7 to 9% at 13,000 requests/s, whatever the router."""
QUIET_S = 0.2
QUIET_RATIO = 0.85
"""A machine is quiet when both cores were idle for this share of `QUIET_S` seconds."""
MAX_LOAD_CORE_BUSY_RATIO = 0.97
"""Above it the load or the upstream may have been the limit; such a sample is void."""


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds of one core since boot: idle, and taken by the host."""

    idle_s: float
    stolen_s: float


def read_core(core: int) -> CoreTimes:
    """Reads /proc/stat: only its idle time is exact, the busy ones are samples that miss work in step with the tick."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            idle, waiting, stolen = (int(fields[i]) / TICKS_PER_S for i in (3, 4, 7))
            return CoreTimes(idle + waiting, stolen)
    raise RuntimeError(f"core {core} is not in /proc/stat: this benchmark needs two cores, 0 and 1")


def session_pids(session: int) -> list[int]:
    """The processes of a session, the one that a program was started in."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields and int(fields[3]) == session:
                found.append(int(entry.name))
    return found


def cpu_s(session: int) -> float:
    """User and system CPU seconds so far of a session's live processes and the children they have waited for."""
    total = 0
    for pid in session_pids(session):
        fields = _stat_fields(pid)
        if fields:
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS_PER_S


def resident_bytes(session: int) -> int:
    """Resident memory of a session's processes; pages that they share count once for each."""
    total = 0
    for pid in session_pids(session):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        except OSError:
            continue
    return total


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (field 3 in proc(5) is index 0), empty where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _ended_children_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


@dataclass(frozen=True, slots=True)
class Usage:
    """What a window of `seconds` used: ratios are shares of a core, `router_cpu_s` is of the router's processes."""

    seconds: float
    router_cpu_s: float
    router_core_busy_ratio: float
    load_core_busy_ratio: float
    foreign_ratio: float

    def problem(self) -> str | None:
        """Why a sample taken in this window says nothing, or None."""
        if self.foreign_ratio > MAX_FOREIGN_RATIO:
            return f"other processes or the host took {self.foreign_ratio:.0%} of a core"
        if self.load_core_busy_ratio > MAX_LOAD_CORE_BUSY_RATIO and self.router_core_busy_ratio < 0.95:
            return f"the core of upstream and load was {self.load_core_busy_ratio:.0%} busy and the limit"
        return None


class Meter:
    """Reads the clocks at its start and again at `usage`."""

    def __init__(self, router: int | None, load: list[int]) -> None:
        """`router` and `load` are sessions; everything else that runs on the two cores is foreign."""
        self._router, self._load = router, load
        self._start = self._read()

    def _read(self) -> tuple[float, CoreTimes, CoreTimes, float, float]:
        router_s = cpu_s(self._router) if self._router is not None else 0.0
        own_s = sum(cpu_s(session) for session in self._load) + time.process_time() + _ended_children_s()
        return time.monotonic(), read_core(ROUTER_CORE), read_core(LOAD_CORE), router_s, own_s

    def usage(self) -> Usage:
        """What was used since the start."""
        before, after = self._start, self._read()
        seconds = after[0] - before[0]
        router_busy = seconds - (after[1].idle_s - before[1].idle_s)
        load_busy = seconds - (after[2].idle_s - before[2].idle_s)
        router_cpu, load_cpu = after[3] - before[3], after[4] - before[4]
        stolen = max(after[1].stolen_s - before[1].stolen_s, after[2].stolen_s - before[2].stolen_s)
        other_on_router = router_busy - router_cpu if self._router is not None else 0.0
        foreign = max(other_on_router, load_busy - load_cpu, 0.0) + stolen
        return Usage(seconds, router_cpu, router_busy / seconds, load_busy / seconds, foreign / seconds)


def wait_until_quiet(deadline_s: float) -> bool:
    """Waits until both cores were nearly idle for `QUIET_S`. False where they were not in `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        before = [read_core(core).idle_s for core in (ROUTER_CORE, LOAD_CORE)]
        time.sleep(QUIET_S)
        after = [read_core(core).idle_s for core in (ROUTER_CORE, LOAD_CORE)]
        if all(late - early >= QUIET_RATIO * QUIET_S for early, late in zip(before, after, strict=True)):
            return True
    return False


def describe(python: str) -> dict[str, str | int]:
    """The machine in words, for the report; `python` is the version that the Python programs run on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": python,
    }

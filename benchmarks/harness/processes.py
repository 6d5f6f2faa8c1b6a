"""Programs under test: started in a session of their own on one core, stopped with all that they started."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.machine import session_pids

STOP_S = 5.0


class StartError(Exception):
    """A program did not come up; the message ends in its last lines of output."""


class Program:
    """One program, pinned to a core, its output in a file. Use it in a `with` statement."""

    def __init__(self, command: list[str], core: int, log: Path, environment: dict[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.command, self.log = command, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self.session = self._process.pid
        raise_priority(self.session)

    def wait_until_answers(self, url: str, deadline_s: float, key: str | None = None) -> None:
        """Until a GET of `url` gives 200. Raises StartError where the program ends first or `deadline_s` pass."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise StartError(f"{self.command[0]} ended with {self._process.returncode}: {self._last_lines()}")
            if get(url, key) is not None:
                return
            time.sleep(0.05)
        raise StartError(f"{self.command[0]} did not answer {url} in {deadline_s:.0f} s: {self._last_lines()}")

    def _last_lines(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-4:])

    def is_running(self) -> bool:
        """Whether the program itself has not ended."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> None:
        """Until the program has ended by itself; after `timeout_s` seconds it is stopped."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()

    def stop(self) -> None:
        """Ends the program and everything in its session: politely, then for good after `STOP_S` seconds."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            pids = session_pids(self.session)
            for pid in pids:
                _signal(pid, number)
            end = time.monotonic() + STOP_S
            while pids and time.monotonic() < end:
                self._process.poll()
                if not session_pids(self.session):
                    return
                time.sleep(0.02)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def raise_priority(pid: int) -> None:
    """Puts a process and the scheduling group of its session before all others; without the right nothing happens."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, -20)
        Path(f"/proc/{pid}/autogroup").write_text("-20")
    except OSError:
        return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def get(url: str, key: str | None = None) -> bytes | None:
    """The body of a 200 answer, None for anything else."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            body: bytes = response.read()
            return body if response.status == 200 else None
    except (urllib.error.URLError, OSError):
        return None


def port_is_free(port: int) -> bool:
    """Whether nothing listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) != 0

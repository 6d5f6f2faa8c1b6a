"""The processes of these tests: real vLLM replicas on the CPU, and the gateway in front of them."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from vllm_http import call, wait_until

INSTALLED = Path(__file__).resolve().parents[2] / ".vllm"
# Below the range that the kernel gives to outgoing connections, so that none takes a port between choosing and binding.
PORTS = range(23_000, 23_500)
BLOCK_TOKENS = 32
SLOTS = 4
CONTEXT_TOKENS = 8192
QUEUE_LIMIT = 8  # of a replica that has one: requests running and waiting together
REPLICA_FLAGS = (
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--enforce-eager", "--distributed-executor-backend", "uni"),
    *("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(SLOTS), "--kv-cache-memory-bytes", "64M"),
    # The default block on a CPU is 128 tokens: short conversations would never hit the prefix cache.
    *("--block-size", str(BLOCK_TOKENS), "--enable-prompt-tokens-details"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
REPLICA_ENVIRONMENT = {
    **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    # By default every replica pins its threads to core 0; two unpinned spinning threads for each are no better.
    **{"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    # The engine runs the model itself, not in one more process: 0.4 GB less for each, and a quicker start.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process when the tests are killed, for then no fixture does."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """A process in a session of its own that serves `url`, with its output in `log`."""

    def __init__(self, command: Sequence[str | Path], url: str, log: Path, environment: Mapping[str, str]) -> None:
        self.url = url
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def answers(self, path: str) -> bool:
        """Whether `path` is answered with 200; fails with the end of the log if the process has ended."""
        assert self.process.poll() is None, f"{self.log.name}: ended early\n{self.log.read_text()[-3000:]}"
        with contextlib.suppress(OSError):
            return call(self.url + path, timeout_s=2).status == 200
        return False

    def stop(self) -> None:
        """End the process, and whatever of its session outlives it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


class Replica(Server):
    """One vLLM server with the tiny model, on a free port."""

    def __init__(
        self, name: str, port: int, logs: Path, *flags: str, environment: Mapping[str, str] | None = None
    ) -> None:
        command = (INSTALLED / "venv/bin/vllm", "serve", INSTALLED / "tiny-llama", "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        super().__init__(
            [*command, *REPLICA_FLAGS, *flags],
            url,
            logs / f"{name}.log",
            {**REPLICA_ENVIRONMENT, **(environment or {})},
        )
        self.name = name

    def stand_back(self) -> None:
        """Leave the processor to others: an engine's busy loop starves the gateway and the tests for seconds.

        A process session is a scheduling group of its own, whose weight `nice` does not change.
        """
        with contextlib.suppress(OSError):  # a kernel without such groups
            Path(f"/proc/{self.process.pid}/autogroup").write_text("19")

    def metrics(self, *names: str) -> list[float]:
        """Read one metrics page: the sum over the series of each `vllm:<name>`; no series is 0, as vLLM means it."""
        page = call(self.url + "/metrics").body.decode()
        series = [re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE) for name in names]
        return [sum(map(float, values)) for values in series]

    def metric(self, name: str) -> float:
        return self.metrics(name)[0]

    def load(self) -> tuple[int, int]:
        """How many requests run and how many wait."""
        running, waiting = self.metrics("num_requests_running", "num_requests_waiting")
        return int(running), int(waiting)

    def is_idle(self) -> bool:
        return self.load() == (0, 0)


class Gateway(Server):
    """`poise serve` in front of `replicas`, on free ports; they are named r1, r2 and so on in that order.

    `settings` is what its configuration file holds.
    """

    def __init__(
        self, replicas: Sequence[Replica], policy: str | None, settings: Mapping[str, Any] | None, logs: Path
    ) -> None:
        port, admin_port = free_ports(2)
        command = (sys.executable, "-m", "poise", "serve", "--port", str(port), "--admin-port", str(admin_port))
        fleet = [word for replica in replicas for word in ("--replica", replica.url)]
        chosen = ["--policy", policy] if policy else []
        if settings:
            file = logs / f"gateway-{port}.yaml"
            file.write_text(json.dumps(settings))  # JSON is YAML
            chosen += ["--config", str(file)]
        super().__init__([*command, *fleet, *chosen], f"http://127.0.0.1:{port}", logs / f"gateway-{port}.log", {})
        self.admin_url = f"http://127.0.0.1:{admin_port}"

    def fleet(self) -> list[dict[str, Any]]:
        """What the gateway knows of each replica, in the order in which they were given."""
        replicas: list[dict[str, Any]] = call(self.admin_url + "/api/fleet").json()["replicas"]
        return replicas

    def is_complete(self) -> bool:
        """Whether every replica is ready and has been read; the gateway itself is ready with the first."""
        return all(replica["state"] == "ready" and replica["metrics_age_s"] is not None for replica in self.fleet())


OpenGateway = Callable[..., AbstractContextManager[Gateway]]


def free_ports(count: int) -> list[int]:
    """Return `count` ports that nobody listens on."""
    free: list[int] = []
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError(f"fewer than {count} ports are free in {PORTS}")


@contextmanager
def running(servers: Sequence[Server], ready_path: str, within_s: float) -> Iterator[None]:
    """Wait until all of `servers` are ready, and stop them all in the end."""
    try:
        for server in servers:
            wait_until(partial(server.answers, ready_path), within_s, f"{server.log.name}: {ready_path} is 200")
        yield
    finally:
        for server in servers:
            server.stop()

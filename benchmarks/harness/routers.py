"""The programs that are measured: how each is found, started and asked whether it is up."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness import configs
from harness.machine import ROUTER_CORE
from harness.payload import KEY
from harness.processes import Program

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".bench"
PEERS = WORK / "peers"
RUN = WORK / "run"

PORT = 22010
SIDE_PORT = 22011
"""Where a router has its own metrics or admin page."""
REPLICA_PORT = 22100


@dataclass(frozen=True, slots=True)
class Router:
    """One program. `command(replica_ports)` writes what files it needs and gives the command line."""

    name: str
    program: Callable[[], Path | None]
    command: Callable[[list[int]], list[str]]
    version: Callable[[], str]
    ready_path: str = "/health"
    start_s: float = 30.0
    environment: dict[str, str] = field(default_factory=dict)
    slow: bool = False
    """Takes long to start and is far from the others: one round is enough."""

    def absent(self) -> str | None:
        """Why it cannot be measured here, or None."""
        if self.program() is None:
            return f"{self.name} is not installed (run benchmarks/setup_peers.py, which says why)"
        return None

    def start(self, replica_ports: list[int]) -> Program:
        """Starts it on the router's core and waits until it answers. Raises StartError."""
        log = WORK / "logs" / f"{self.name}.log"
        program = Program(self.command(replica_ports), ROUTER_CORE, log, self.environment)
        try:
            program.wait_until_answers(f"http://127.0.0.1:{PORT}{self.ready_path}", self.start_s, KEY)
        except BaseException:
            program.stop()
            raise
        return program


def _directory(name: str) -> Path:
    directory = RUN / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _urls(replica_ports: list[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in replica_ports]


def _which(name: str) -> Path | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def _in_venv(name: str, program: str) -> Path | None:
    path = PEERS / name / "bin" / program
    return path if path.exists() else None


def _printed_version(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?[\w.+-]*", done.stdout + done.stderr)
    return found[0] if found else "unknown"


def python_version() -> str:
    """That of Poise's environment, which all Python programs share."""
    return _printed_version([str(PEERS / "poise" / "bin" / "python"), "--version"])


def _package_version(name: str, package: str) -> Callable[[], str]:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return lambda: _printed_version([str(PEERS / name / "bin" / "python"), "-c", code])


def _haproxy(replica_ports: list[int]) -> list[str]:
    path = _directory("haproxy") / "haproxy.cfg"
    path.write_text(configs.haproxy(PORT, replica_ports))
    return [str(_which("haproxy")), "-db", "-f", str(path)]


def _nginx(replica_ports: list[int]) -> list[str]:
    directory = _directory("nginx")
    path = directory / "nginx.conf"
    path.write_text(configs.nginx(PORT, replica_ports, str(directory)))
    return [str(_which("nginx")), "-p", str(directory), "-e", "stderr", "-c", str(path)]


def _litellm(replica_ports: list[int]) -> list[str]:
    path = _directory("litellm") / "config.yaml"
    path.write_text(configs.litellm(replica_ports))
    program = str(_in_venv("litellm", "litellm"))
    return [program, "--config", str(path), "--host", "127.0.0.1", "--port", str(PORT), "--num_workers", "1"]


def _rust_router(program: Path | None, launch: list[str], log_level: str, replica_ports: list[int]) -> list[str]:
    """`vllm-router` and `sglang-router` share their flags, not the names of their log levels."""
    return [
        *[str(program), *launch, "--host", "127.0.0.1", "--port", str(PORT), "--policy", "round_robin"],
        *["--prometheus-host", "127.0.0.1", "--prometheus-port", str(SIDE_PORT)],
        *["--log-level", log_level, "--worker-startup-check-interval", "1"],
        *["--worker-urls", *_urls(replica_ports)],
    ]


def _vllm_router(replica_ports: list[int]) -> list[str]:
    return _rust_router(_in_venv("vllm-router", "vllm-router"), [], "warning", replica_ports)


def _sglang_router(replica_ports: list[int]) -> list[str]:
    return _rust_router(_in_venv("sglang-router", "smg"), ["launch"], "warn", replica_ports)


def _poise_program() -> Path | None:
    """Poise as users install it: a wheel of this tree, its hot path compiled."""
    return _in_venv("poise", "poise")


def _poise(replica_ports: list[int]) -> list[str]:
    log = _directory("poise") / "requests.jsonl"
    log.unlink(missing_ok=True)
    replicas = [part for url in _urls(replica_ports) for part in ("--replica", url)]
    settings = ["--config", str(ROOT / "benchmarks" / "poise.yaml"), "--log-requests", str(log)]
    settings += ["--keys-file", str(ROOT / "benchmarks" / "keys.yaml")]
    ports = ["--host", "127.0.0.1", "--port", str(PORT), "--admin-port", str(SIDE_PORT)]
    return [str(_poise_program()), "serve", *settings, *ports, *replicas]


def from_command(name: str, template: str) -> Router:
    """A router of the caller's own; `template` holds {port} and {replica_ports} (commas) or {replica_urls} (spaces)."""

    def command(replica_ports: list[int]) -> list[str]:
        ports = ",".join(map(str, replica_ports))
        return shlex.split(template.format(port=PORT, replica_ports=ports, replica_urls=" ".join(_urls(replica_ports))))

    return Router(name, lambda: _which(shlex.split(template)[0]), command, lambda: "given by command")


DIRECT = "direct"
"""No router at all: the load goes to the first replica. What is left is the harness's own cost."""

ROUTERS: dict[str, Router] = {
    router.name: router
    for router in (
        Router(
            "poise", _poise_program, _poise, lambda: _printed_version([str(_poise_program()), "--version"]), "/ready"
        ),
        Router(
            "haproxy", lambda: _which("haproxy"), _haproxy, lambda: _printed_version([str(_which("haproxy")), "-v"])
        ),
        Router("nginx", lambda: _which("nginx"), _nginx, lambda: _printed_version([str(_which("nginx")), "-v"])),
        Router(
            "vllm-router",
            lambda: _in_venv("vllm-router", "vllm-router"),
            _vllm_router,
            _package_version("vllm-router", "vllm-router"),
        ),
        Router(
            "sglang-router",
            lambda: _in_venv("sglang-router", "smg"),
            _sglang_router,
            _package_version("sglang-router", "sglang-router"),
        ),
        Router(
            "litellm",
            lambda: _in_venv("litellm", "litellm"),
            _litellm,
            _package_version("litellm", "litellm"),
            ready_path="/health/liveliness",
            start_s=90.0,
            environment={"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            slow=True,
        ),
    )
}

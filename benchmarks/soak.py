"""A day in small: two million requests through an installed wheel, and whether memory or any table grew.

`benchmarks/soak.py [--requests N]`. Every request has a session, a prompt and an id of its own. Meanwhile streams flow,
callers hang up, ask for what does not exist, and send what is no HTTP; a replica is named and forgotten again in the
configuration file every few seconds. Needs `benchmarks/setup_peers.py`, which installs the wheel and the load tools.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from harness import load, machine
from harness.payload import KEY, chat_request, write_request
from harness.processes import Program, port_is_free
from harness.routers import PEERS, PORT, ROOT, RUN, SIDE_PORT, WORK

INTERVAL_S = 5.0
SETTLED_SHARE = 0.25
"""Growth is counted from this share of the requests on: before, pools and histograms fill."""
MAX_GROWTH_BYTES = 4_000_000
MAX_TABLE_GROWTH = 100
"""Entries that a table may have gained: connections and requests that happen to be open are counted too."""
REPLICAS = 8
SETTINGS = """
host: 127.0.0.1
port: {port}
admin: {{port: {admin_port}}}
keys: {{file: {keys}}}
log: {{level: error, requests: /dev/null}}
idempotency: {{max_age_s: 10}}
replicas: [{replicas}]
"""


def configure(path: Path, ports: list[int]) -> None:
    """Have the gateway's file name these replicas."""
    replicas = ", ".join(f'{{url: "http://127.0.0.1:{port}", name: p{port}}}' for port in ports)
    keys = ROOT / "benchmarks" / "keys.yaml"
    path.write_text(SETTINGS.format(port=PORT, admin_port=SIDE_PORT, keys=keys, replicas=replicas))


class Trouble(threading.Thread):
    """Callers who hang up, ask for nonsense or send it, a hundred times a second; and a changing configuration."""

    def __init__(self, config: Path, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.done = 0
        self._config, self._ports = config, ports
        self._random = Random(1)

    def run(self) -> None:
        """Until `over` is set."""
        while not self.over.wait(0.01):
            try:
                self._one()
            except OSError:
                continue
            self.done += 1
            if self.done % 300 == 0:
                configure(self._config, self._ports[: self._random.choice((7, 8))])

    def _one(self) -> None:
        kinds = (self._hang_up, self._hang_up, self._hang_up, self._unknown, self._same_key, self._no_http)
        with socket.create_connection(("127.0.0.1", PORT), timeout=2) as caller:
            self._random.choice(kinds)(caller)

    def _hang_up(self, caller: socket.socket) -> None:
        """In the middle of a stream, or before it has begun."""
        caller.sendall(self._numbered(chat_request(stream=True, steer=" gap_us=20000 chunks=100")))
        if self._random.random() < 0.5:
            caller.recv(1000)

    def _unknown(self, caller: socket.socket) -> None:
        """A model, a path or a key that nobody knows."""
        body = self._numbered(chat_request(stream=False))
        old, new = self._random.choice(((b"tiny", b"t%03d"), (b"/v1/", b"/v%03d/"), (KEY.encode(), b"sk-%05d")))
        caller.sendall(body.replace(old, new % self._random.randrange(999)))
        caller.recv(1000)

    def _same_key(self, caller: socket.socket) -> None:
        """An idempotency key and a request id of its own."""
        extra = b"Idempotency-Key: k%d\r\nX-Request-Id: r%d\r\nHost:" % (self.done, self.done)
        caller.sendall(self._numbered(chat_request(stream=False)).replace(b"Host:", extra, 1))
        caller.recv(1000)

    def _no_http(self, caller: socket.socket) -> None:
        caller.sendall(self._random.randbytes(200))

    def _numbered(self, request: bytes) -> bytes:
        return request.replace(b"@SEQUENCE", b"%09d" % (900_000_000 + self.done))


def samples(program: Program) -> list[dict[str, Any]]:
    """What the gateway has said of itself so far."""
    whole, _, _ = program.log.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def grown(taken: list[dict[str, Any]]) -> list[str]:
    """What is larger at the end than it was when everything had settled."""
    settled = next(s for s in taken if s["requests"] >= SETTLED_SHARE * taken[-1]["requests"])
    last = taken[-1]
    found = []
    growth = last["resident_bytes"] - settled["resident_bytes"]
    if growth > MAX_GROWTH_BYTES:
        found.append(f"resident memory by {growth / 1e6:.1f} MB")
    for name, size in last["tables"].items():
        if size - settled["tables"].get(name, 0) > MAX_TABLE_GROWTH:
            found.append(f"{name} from {settled['tables'].get(name, 0)} to {size} entries")
    return found


def show(taken: dict[str, Any], began_s: float) -> None:
    """One line of progress, and the largest tables."""
    largest = sorted(taken["tables"].items(), key=lambda item: -item[1])[:5]
    print(
        f"{time.monotonic() - began_s:6.0f} s  {taken['requests']:9d} requests  "
        f"{taken['resident_bytes'] / 1e6:6.1f} MB  {taken['blocks']:7d} blocks  "
        + ", ".join(f"{name} {size}" for name, size in largest),
        flush=True,
    )


def run(requests: int) -> int:
    """Send everything and judge. 1 where something grew."""
    directory = RUN / "soak"
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "poise.yaml"
    upstream = load.UpstreamSettings(replicas=REPLICAS, chunks=8)
    configure(config, upstream.ports)
    command = [str(PEERS / "poise" / "bin" / "python"), str(ROOT / "benchmarks" / "soak_gateway.py"), str(config)]
    with (
        load.start_upstream(upstream),
        Program([*command, f"{INTERVAL_S}"], machine.ROUTER_CORE, WORK / "logs" / "soak.log") as gateway,
    ):
        gateway.wait_until_answers(f"http://127.0.0.1:{PORT}/ready", 30)
        trouble = Trouble(config, upstream.ports)
        trouble.start()
        flags: dict[str, float | int | str] = {"connections": 64, "distinct": requests, "duration-s": 36_000}
        plain = write_request(directory / "plain.http", chat_request(stream=False))
        streamed = write_request(directory / "stream.http", chat_request(stream=True))
        began_s, shown = time.monotonic(), 0
        runs = [
            load.LoadRun(PORT, plain, flags | {"requests": requests * 9 // 10}),
            load.LoadRun(PORT, streamed, flags | {"requests": requests // 10, "connections": 16}),
        ]
        while any(run.program.is_running() for run in runs):
            time.sleep(1)
            for taken in samples(gateway)[shown:]:
                show(taken, began_s)
                shown += 1
        trouble.over.set()
        trouble.join()
        results = [run.finish(5) for run in runs]
        seconds = time.monotonic() - began_s
        time.sleep(2 * INTERVAL_S)
        taken = samples(gateway)
    show(taken[-1], began_s)
    failed = sum(result["refused"] + result["broken"] for result in results)
    print(
        f"{taken[-1]['requests']} requests in {seconds:.0f} s, {failed} of the load's failed, {trouble.done} troubled"
    )
    found = grown(taken)
    print("grew: " + "; ".join(found) if found else "nothing grew")
    return 1 if found or failed else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000_000, metavar="N", help="default: 2,000,000")
    arguments = parser.parse_args()
    if not (port_is_free(PORT) and port_is_free(load.REPLICA_PORT)):
        sys.exit(f"port {PORT} or {load.REPLICA_PORT} is in use\nhint: another benchmark may be running")
    os.chdir(ROOT)
    load.build()
    return run(arguments.requests)


if __name__ == "__main__":
    sys.exit(main())

"""A gateway in a process of its own: `python -m support.serve_data_path POLICY PORT...`, ended by closing its input.

Prints its port. For what depends on the process, such as the seed of Python's own hashes.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import uvloop

from poise.core.replica import ReplicaAddress, ReplicaSpec
from poise.fleet.fleet import Fleet
from poise.proxy.data_path import DataPath
from poise.proxy.settings import DataPathSettings
from poise.routing.registry import make_policy


async def serve(policy: str, ports: Sequence[int]) -> None:
    """Serve replicas r1, r2, ... until standard input ends."""
    fleet = Fleet()
    for number, port in enumerate(ports, 1):
        fleet.join(ReplicaSpec(f"r{number}", ReplicaAddress("127.0.0.1", port)))
    data_path = DataPath(DataPathSettings(host="127.0.0.1", port=0), fleet, make_policy(policy, {}, Random(1)))
    await data_path.start()
    print(data_path.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await data_path.close()


@asynccontextmanager
async def data_path_process(policy: str, ports: Sequence[int], *, hash_seed: int) -> AsyncIterator[int]:
    """The port of a gateway in a new process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.serve_data_path", policy, *map(str, ports),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    try:
        async with asyncio.timeout(20):
            yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], [int(port) for port in sys.argv[2:]]))

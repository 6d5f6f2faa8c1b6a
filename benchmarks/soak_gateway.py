"""A gateway that tells its own size: run by `soak.py` with the Python of an installed wheel.

Every line on standard output is JSON: requests ended, resident bytes, allocated blocks, and the length of every
container that can be reached from the gateway, added up by the class and attribute that hold it.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter, deque
from typing import Any

import uvloop

from poise.app.gateway import Gateway
from poise.app.log import configure_log
from poise.config.load import ConfigInputs

CONTAINERS = (dict, list, set, frozenset, deque)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def table_sizes(root: object) -> dict[str, int]:
    """How much every container holds that is reached from `root` through objects of Poise."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[object, str]] = [(root, "")]
    while waiting:
        thing, path = waiting.pop()
        if id(thing) in seen:
            continue
        if isinstance(thing, CONTAINERS):
            seen.add(id(thing))
            sizes[path] += len(thing)
            inside = [*thing.keys(), *thing.values()] if isinstance(thing, dict) else thing
            waiting += [(item, f"{path}[]") for item in inside if is_worth_a_look(item)]
        elif type(thing).__module__.startswith("poise."):
            seen.add(id(thing))
            name = type(thing).__name__
            waiting += [(value, f"{name}.{key}") for key, value in attributes(thing) if is_worth_a_look(value)]
        elif isinstance(thing, tuple):
            waiting += [(item, path) for item in thing if is_worth_a_look(item)]
    return dict(sizes)


def is_worth_a_look(value: object) -> bool:
    """Whether a container could be behind it."""
    return isinstance(value, (*CONTAINERS, tuple)) or type(value).__module__.startswith("poise.")


def attributes(thing: object) -> list[tuple[str, object]]:
    """What the object holds: its `__dict__`, and its slots or a compiled class's fields."""
    found = dict(getattr(thing, "__dict__", {}))
    for cls in type(thing).__mro__:
        for key, descriptor in vars(cls).items():
            if type(descriptor).__name__ in ("member_descriptor", "getset_descriptor") and not key.startswith("__"):
                try:
                    found[key] = getattr(thing, key)
                except (AttributeError, AssertionError, LookupError, TypeError):
                    continue
    return list(found.items())


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * PAGE_BYTES


def sample(gateway: Gateway) -> dict[str, Any]:
    """The gateway's size now."""
    counters = gateway.data_path.counters
    gc.collect()
    return {
        "requests": sum(counters.requests.values()) + sum(counters.refusals.values()),
        "in_flight": counters.in_flight,
        "resident_bytes": resident_bytes(),
        "blocks": sys.getallocatedblocks(),
        "tables": table_sizes(gateway),
    }


async def serve(path: str, interval_s: float) -> None:
    """Serve what the configuration at `path` names until SIGTERM, and print a sample every `interval_s`."""
    inputs = ConfigInputs(path, {}, {})
    settings = inputs.load().settings
    configure_log(settings.log.level)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Gateway(settings, inputs=inputs) as gateway:
        while not stopped.is_set():
            print(json.dumps(sample(gateway)), flush=True)
            try:
                await asyncio.wait_for(stopped.wait(), interval_s)
            except TimeoutError:
                continue
        print(json.dumps(sample(gateway)), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], float(sys.argv[2])))

"""All watches of one kind: one for each page that some replica names, started and ended as the fleet changes."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from poise.core.errors import ConfigError
from poise.core.replica import parse_replica_url, without_secrets
from poise.core.tasks import TaskGroupOwner
from poise.fleet.replica import Replica
from poise.telemetry.watch import Page, PageReader, Schedule, Watch


class ReplicaPageReader(PageReader, Protocol):
    """A reader that knows whom its page is about."""

    replicas: Sequence[Replica]


ReaderT = TypeVar("ReaderT", bound=ReplicaPageReader)


class _Running(NamedTuple, Generic[ReaderT]):
    reader: ReaderT
    watch: Watch
    task: asyncio.Task[None]


class Watches(Generic[ReaderT]):
    """`new_reader` makes the reader of a page that was not watched before; the tasks belong to `tasks`."""

    def __init__(self, schedule: Schedule, tasks: TaskGroupOwner, new_reader: Callable[[Page], ReaderT]) -> None:
        self._schedule = schedule
        self._tasks = tasks
        self._new_reader = new_reader
        self._running: dict[Page, _Running[ReaderT]] = {}

    def find(self, page: Page) -> ReaderT | None:
        """The reader of `page`, None if it is not watched."""
        running = self._running.get(page)
        return running and running.reader

    def look_soon(self, page: Page) -> None:
        """Do not wait for the next turn of `page`."""
        if page in self._running:
            self._running[page].watch.look_soon()

    def follow(self, wanted: Mapping[Page, Sequence[Replica]]) -> None:
        """Watch exactly the pages of `wanted`, which are about these replicas, spread evenly over the interval."""
        for page in self._running.keys() - wanted.keys():
            self._running.pop(page).task.cancel()
        for position, (page, replicas) in enumerate(wanted.items()):
            offset_s = self._schedule.interval_s * position / len(wanted)
            running = self._running.get(page) or self._start(page, offset_s)
            running.watch.offset_s = offset_s
            running.watch.hosts = replicas[0].hosts if replicas[0].spec.address.host == page.address.host else ()
            running.reader.replicas = replicas

    def _start(self, page: Page, offset_s: float) -> _Running[ReaderT]:
        reader = self._new_reader(page)
        watch = Watch(page, reader, self._schedule)
        task = self._tasks.spawn(
            watch.run(self._schedule.first_pause_s(offset_s)), name=f"watch {without_secrets(page.target)}"
        )
        running = self._running[page] = _Running(reader, watch, task)
        return running


def page_at(url: str) -> Page:
    """The page at `url`, whose path and query are kept. Raises `ConfigError` that does not show it if it is none."""
    try:
        parts = urlsplit(url)
        address = parse_replica_url(f"{parts.scheme}://{parts.netloc}")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    except (ValueError, ConfigError):
        target = ""
    if not _TARGET.fullmatch(target):
        raise ConfigError(
            "is not the address of a page", hint="write it as http://host:9400/metrics, without user and password"
        )
    return Page(address, target)


_TARGET = re.compile(r"[!-~]+")

"""The metrics of the server around the engine, as vLLM's page has them: HTTP by route, process, Python."""

import os
import platform
import resource
from collections.abc import Sequence

from poise.engine.metrics_page import MetricsPage
from poise.report.histogram import Histogram

PRECISE_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5,
                   10.0, 30.0, 60.0)  # fmt: skip
COARSE_BUCKETS = (0.1, 0.5, 1.0)
CLASSES = ("2xx", "4xx", "5xx")


class HttpCounts:
    """What the server has answered: by route and class of status, and how long it took."""

    def __init__(self, routes: Sequence[tuple[str, str]]) -> None:
        self._routes = {route: index for index, route in enumerate(routes)}
        self._keys = list(routes)
        self.classes = [[0] * len(CLASSES) for _ in routes]
        self.by_route = [Histogram(COARSE_BUCKETS) for _ in routes]
        self.all = Histogram(PRECISE_BUCKETS)

    def finished(self, method: str, path: str, status: int, duration_s: float) -> None:
        """Count one answer; paths that are no route are not told apart."""
        self.all.observe(duration_s)
        index = self._routes.get((method, path))
        if index is not None:
            self.classes[index][CLASSES.index(f"{status // 100}xx")] += 1
            self.by_route[index].observe(duration_s)

    def add_to(self, page: MetricsPage) -> None:
        """Add the HTTP metrics to `page`."""
        page.counter(
            "http_requests",
            "Number of requests by method, status and handler.",
            [f'handler="{path}",method="{method}",status="{c}"' for method, path in self._keys for c in CLASSES],
            lambda: [number for classes in self.classes for number in classes],
        )
        description = "Time to answer in few buckets, by handler."
        labels = [f'handler="{path}",method="{method}"' for method, path in self._keys]
        page.histogram("http_request_duration_seconds", description, dict(zip(labels, self.by_route, strict=True)))
        page.histogram("http_request_duration_highr_seconds", "Time to answer in many buckets.", {"": self.all})


def add_process(page: MetricsPage, started_at: float) -> None:
    """Add what a Python process says of itself."""
    version = platform.python_version_tuple()
    page.family("python_info", "gauge", "Python platform information")
    page.constant(
        f'python_info{{implementation="{platform.python_implementation()}",major="{version[0]}",minor="{version[1]}",'
        f'patchlevel="{version[2]}",version="{platform.python_version()}"}}',
        1,
    )
    page.family("process_start_time_seconds", "gauge", "Start time of the process since the epoch in seconds.")
    page.constant("process_start_time_seconds", started_at)
    page.family("process_cpu_seconds_total", "counter", "User and system CPU time spent in seconds.")
    page.series(["process_cpu_seconds_total"], lambda: [sum(os.times()[:2])])
    page.family("process_resident_memory_bytes", "gauge", "Largest resident memory so far in bytes.")
    page.series(["process_resident_memory_bytes"], lambda: [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024])

"""What a run found: samples to medians, ratios to the base, one JSON file for each scenario."""

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.scenario import Sample, Scenario

BASE = "poise"


@dataclass(slots=True)
class RouterResult:
    """One router's samples in one scenario. `absent` says why there are none."""

    name: str
    version: str = ""
    samples: list[Sample] = field(default_factory=list)
    absent: str | None = None

    @property
    def good(self) -> list[Sample]:
        """The samples that count."""
        return [sample for sample in self.samples if sample.problem is None]

    @property
    def medians(self) -> dict[str, float]:
        """The median of each figure over the good samples, empty where there are none."""
        good = self.good
        names = good[0].values if good else {}
        return {name: statistics.median(sample.values[name] for sample in good) for name in names}

    @property
    def void(self) -> str | None:
        """Why there is no figure although the router ran, or None."""
        if self.absent or self.good or not self.samples:
            return None
        return self.samples[-1].problem

    @property
    def note(self) -> str | None:
        """What a reader must know of the figures: the last note among the good samples."""
        return next((sample.note for sample in reversed(self.good) if sample.note), None)


def to_json(scenario: Scenario, results: list[RouterResult], about: dict[str, Any], base: str) -> dict[str, Any]:
    """The scenario's file: everything that the table and the plot are made from."""
    headline = scenario.columns[0].value
    base_value = next((r.medians.get(headline) for r in results if r.name == base), None)
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "how": scenario.how,
        "higher_is_better": scenario.higher_is_better,
        "columns": [asdict(column) for column in scenario.columns],
        "base": base,
        "about": about,
        "routers": {result.name: _router_json(result, headline, base_value) for result in results},
    }


def _router_json(result: RouterResult, headline: str, base_value: float | None) -> dict[str, Any]:
    value = result.medians.get(headline)
    return {
        "version": result.version,
        "absent": result.absent,
        "void": result.void,
        "note": result.note,
        "medians": result.medians,
        "ratio_of_base": base_value / value if base_value and value else None,
        "samples": [asdict(sample) for sample in result.samples],
    }


def write(directory: Path, document: dict[str, Any]) -> None:
    """Writes a scenario's file into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(document), indent=2)
    (directory / f"{document['scenario']}.json").write_text(text + "\n")


def read_all(directory: Path, order: list[str]) -> list[dict[str, Any]]:
    """The scenarios' files of a directory that exist, in `order`."""
    paths = [directory / f"{name}.json" for name in order]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _finite(value: Any) -> Any:
    """JSON has no infinity: it becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value

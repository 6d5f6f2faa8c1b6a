"""Reads the configuration: command line over environment over file over defaults, each value with its source."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import ValidationError

from poise.config.keys import all_keys, read_environment, suggestion
from poise.config.parts import credential_variables, key_ring, model_names, policy
from poise.config.problems import Problem, raise_problems, validation_problems
from poise.config.settings import Settings
from poise.config.text_file import read_text
from poise.config.yaml_file import Path, YamlFile, parse_yaml
from poise.core.errors import ConfigError

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Checked settings, where each one that is not a default came from, and what the operator should be told."""

    settings: Settings
    sources: Mapping[Path, str]
    warnings: tuple[str, ...] = ()

    def source(self, path: Path) -> str:
        """Where the value at `path` came from, as shown by `--print-config`."""
        while path and path not in self.sources:
            path = path[:-1]
        names_only_a_section = len(path) == 1 and str(path[0]) not in all_keys()
        return "default" if names_only_a_section else self.sources.get(path, "default")


@dataclass(frozen=True, slots=True)
class ConfigInputs:
    """What a configuration is read from, and may be read from again. See `load_config`."""

    path: str | None
    environment: Mapping[str, str]
    overrides: Mapping[str, Any]

    def load(self) -> LoadedConfig:
        """The configuration as it is now. Raises `ConfigError`."""
        return load_config(self.path, self.environment, self.overrides)


def load_config(
    path: str | None, environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> LoadedConfig:
    """The configuration from the file at `path` (None for no file), `environment` and `overrides` (dotted keys).

    Raises `ConfigError` that reports everything that is wrong at once.
    """
    file = parse_yaml(read_text(path, "configuration file"), path) if path else YamlFile("", {}, {})
    tree = dict(file.values)
    sources: dict[Path, str] = {place: f"{file.name}:{line}" for place, line in file.lines.items()}
    set_by_environment, warnings = read_environment(environment)
    problems = []
    for key, value in set_by_environment.items():
        _set(tree, sources, key.path, value, key.variable)
    for name, value in (overrides or {}).items():
        if _is_key(name):
            _set(tree, sources, tuple(name.split(".")), value, COMMAND_LINE)
        else:
            problems.append(Problem(COMMAND_LINE, f"unknown key {name!r}{suggestion(name, all_keys())}", ""))
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        problems += validation_problems(error, lambda place: _nearest(sources, place))
    else:
        problems += _part_problems(settings, sources)
    raise_problems(problems)
    named = credential_variables(settings)
    return LoadedConfig(settings, sources, tuple(text for name, text in warnings.items() if name not in named))


def _part_problems(settings: Settings, sources: Mapping[Path, str]) -> Iterator[Problem]:
    """What only the parts themselves can tell: they are made once to see."""
    makers: list[tuple[Path, Callable[[], object]]] = [
        (("models",), lambda: model_names(settings)),
        (("policy", "name"), lambda: policy(settings, Random(0))),
        (("keys", "file"), lambda: key_ring(settings)),
    ]
    for path, make in makers:
        try:
            make()
        except ConfigError as error:
            yield Problem(_nearest(sources, path), error.args[0], error.hint or "")


def _nearest(sources: Mapping[Path, str], path: Path) -> str:
    while path and path not in sources:
        path = path[:-1]
    return sources.get(path, "")


def _is_key(name: str) -> bool:
    return name in all_keys() or (name.startswith("policy.") and len(name) > len("policy."))


def _set(tree: dict[str, Any], sources: dict[Path, str], path: Path, value: Any, source: str) -> None:
    """Put `value` at `path` without touching what a lower layer holds beside it. What is under it is replaced."""
    here = tree
    for step in path[:-1]:
        below = here.get(str(step)) or {}
        if not isinstance(below, dict):
            return  # the file holds something else there, which validation reports
        copy = dict(below)
        here[str(step)] = copy
        here = copy
    here[str(path[-1])] = value
    for place in [place for place in sources if place[: len(path)] == path]:
        del sources[place]
    sources[path] = source

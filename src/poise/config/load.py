"""Reads the configuration: command line over environment over file over defaults, each value with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from random import Random
from typing import Any

from pydantic import ValidationError

from poise.config.keys import all_keys, read_environment, suggestion
from poise.config.parts import policy
from poise.config.problems import Problem, raise_problems, validation_problems
from poise.config.settings import Settings
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


def load_config(
    path: str | None, environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> LoadedConfig:
    """The configuration from the file at `path` (None for no file), `environment` and `overrides` (dotted keys).

    Raises `ConfigError` that reports everything that is wrong at once.
    """
    file = _read_file(path) if path else YamlFile("", {}, {})
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
        problems += _policy_problems(settings, _nearest(sources, ("policy", "name")))
    raise_problems(problems)
    return LoadedConfig(settings, sources, tuple(warnings))


def _policy_problems(settings: Settings, place: str) -> list[Problem]:
    """A policy alone knows its settings: it is made once to see whether it takes them."""
    try:
        policy(settings, Random(0))
    except ConfigError as error:
        return [Problem(place, error.args[0], error.hint or "")]
    return []


def _read_file(path: str) -> YamlFile:
    try:
        text = FilePath(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"configuration file {path} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not UTF-8 text", hint="give a YAML file") from None
    return parse_yaml(text, path)


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

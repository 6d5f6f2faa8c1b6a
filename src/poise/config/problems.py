"""What is wrong with a configuration, in one line each and all reported together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from poise.config.keys import replica_keys, suggestion
from poise.config.settings import Settings, VariantSection
from poise.config.yaml_file import Path
from poise.core.errors import ConfigError

WHERE_TO_LOOK = "poise serve --print-config shows every key, docs/configuration.md what it takes"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where it was set (empty if nowhere), what, and what to do."""

    place: str
    text: str
    hint: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise one `ConfigError` that names all `problems`; nothing if there are none."""
    if not problems:
        return
    if len(problems) == 1:
        raise ConfigError(str(problems[0]), hint=problems[0].hint or WHERE_TO_LOOK)
    lines = [f"  {problem} ({problem.hint})" if problem.hint else f"  {problem}" for problem in problems]
    raise ConfigError("\n".join([f"{len(problems)} settings are wrong", *lines]), hint=WHERE_TO_LOOK)


def validation_problems(
    error: ValidationError, place_of: Callable[[Path], str], model: type[BaseModel] = Settings
) -> list[Problem]:
    """The errors of pydantic about a `model` in Poise's words. `place_of` says where the value at a path was set."""
    return [_translate(details, place_of, model) for details in error.errors(include_url=False)]


def _translate(details: ErrorDetails, place_of: Callable[[Path], str], model: type[BaseModel]) -> Problem:
    path = details["loc"]
    place, key = place_of(path), dotted(path)
    if details["type"] == "extra_forbidden":
        return _unknown_key(place, path, model)
    if details["type"] == "missing":
        return Problem(place, f"{key} is missing", "")
    if details["type"] == "poise":
        context = details["ctx"]
        return Problem(place, f"{key}: {context['text']}" if key else context["text"], context["hint"])
    what = f"{key} is {details['input']!r}" if key else f"what was given is {details['input']!r}"
    return Problem(place, f"{what}, {_expectation(details)}", "")


def _expectation(details: ErrorDetails) -> str:
    if details["type"] == "model_type":
        return "should be keys and values"
    if details["type"] == "tuple_type":
        return "should be a list"
    text = details["msg"].removeprefix("Value error, ").removeprefix("Input ").partition(", unable to parse")[0]
    return text[:1].lower() + text[1:]


def _unknown_key(place: str, path: Path, model: type[BaseModel]) -> Problem:
    known = _keys_beside(path, model)
    word = str(path[-1])
    near = suggestion(word, known)
    hint = "" if near else f"known here: {', '.join(known)}"
    return Problem(place, f"unknown key {dotted(path)!r}{near}", hint)


def _keys_beside(path: Path, model: type[BaseModel]) -> Mapping[str, Any]:
    if path[0] == "replicas":
        return replica_keys()
    if path[:2] == ("models", "aliases"):
        return VariantSection.model_fields
    for step in path[:-1]:
        annotation = model.model_fields[str(step)].annotation
        assert isinstance(annotation, type)
        model = annotation
    return model.model_fields


def dotted(path: Path) -> str:
    """`("replicas", 0, "url")` as `replicas[0].url`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text

"""The configuration as a flat list of keys: their dotted names and environment variables."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from poise.config.replica_section import ReplicaSection
from poise.config.settings import Settings
from poise.config.yaml_file import Path

ENVIRONMENT_PREFIX = "POISE_"
_SHORT_NAMES = {"policy.name": "POISE_POLICY"}
_KUBERNETES = re.compile(r"POISE_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")


@dataclass(frozen=True, slots=True)
class Key:
    """One key that can be set. `name` is dotted, as in `timeouts.connect_s`."""

    name: str
    field: FieldInfo

    @property
    def path(self) -> Path:
        """The key's place in the file."""
        return tuple(self.name.split("."))

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return _SHORT_NAMES.get(self.name) or ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    @property
    def is_list(self) -> bool:
        """Whether the environment variable and the flag take several values."""
        return isinstance(self.field.default, tuple)


@cache
def all_keys() -> Mapping[str, Key]:
    """Every key but those inside one replica, by dotted name, in the order of the documentation."""
    return {key.name: key for key in _walk(Settings, "")}


def replica_keys() -> Mapping[str, FieldInfo]:
    """The keys of one entry of `replicas`."""
    return ReplicaSection.model_fields


def read_environment(environment: Mapping[str, str]) -> tuple[dict[Key, Any], dict[str, str]]:
    """The keys that `environment` sets, and warnings about variables, by name, that mean nothing.

    Empty means unset. What Kubernetes injects for a service called poise (`POISE_PORT=tcp://...`) is left alone.
    """
    by_variable = {key.variable: key for key in all_keys().values()}
    found: dict[Key, Any] = {}
    warnings: dict[str, str] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text or variable == "POISE_CONFIG":
            continue
        key = by_variable.get(variable)
        if key is not None and not text.startswith("tcp://"):
            found[key] = re.split(r"[,\s]+", text.strip(", \n\t")) if key.is_list else text
        elif not _KUBERNETES.fullmatch(variable):
            near = suggestion(variable, by_variable)
            warnings[variable] = f"environment variable {variable} is not one of Poise's{near}"
    return found, warnings


def suggestion(word: str, known: Mapping[str, Any]) -> str:
    """`, did you mean ...?` if something known is near, else nothing."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, f"{prefix}{name}.")
        else:
            yield Key(prefix + name, field)

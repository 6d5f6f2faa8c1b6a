"""Which model a request is for: aliases, canaries among them, and the models that may answer instead."""

from collections.abc import Mapping, Sequence
from math import isfinite
from random import Random

import xxhash

from poise.core.errors import ConfigError

MAX_NAME_CHARACTERS = 256
_FULL = 2.0**64
_hash = xxhash.xxh3_64_intdigest

Variants = Sequence[tuple[str, float]]
"""Models and their weights, 0 or more."""


class ModelNames:
    """What the configuration says of model names. Never changes: a new configuration is a new object.

    `aliases` are names that stand for one model, or for several by weight; `fallbacks` are the models that are tried in
    turn where no replica of a model can be sent a request. Both name models, not aliases, so nothing can go in circles;
    an alias may have a model's own name to send a share of its requests elsewhere. Raises `ConfigError`.
    """

    __slots__ = ("_aliases", "_fallbacks", "_seeds")

    def __init__(self, aliases: Mapping[str, Variants], fallbacks: Mapping[str, Sequence[str]]) -> None:
        for alias, variants in aliases.items():
            _check_alias(alias, variants, aliases)
        for model, others in fallbacks.items():
            _check_fallbacks(model, others, aliases)
        self._aliases = {alias: tuple(variants) for alias, variants in aliases.items()}
        self._fallbacks = {model: tuple(others) for model, others in fallbacks.items()}
        self._seeds = {alias: _hash(alias.encode()) for alias in aliases}

    @property
    def aliases(self) -> dict[str, list[str]]:
        """The models that each alias may stand for, those of weight 0 left out."""
        return {alias: [model for model, weight in found if weight] for alias, found in self._aliases.items()}

    def resolve(self, name: str, session: int | None, random: Random) -> str:
        """The model that `name` stands for: itself unless it is an alias.

        Of several, a session (64 bits) always gets the same one while the weights stay; when they change, only the
        share that they moved by changes. Without a session chance decides.
        """
        variants = self._aliases.get(name)
        if variants is None:
            return name
        if len(variants) == 1:
            return variants[0][0]
        share = random.random() if session is None else _hash(session.to_bytes(8, "little"), self._seeds[name]) / _FULL
        return _at_share(variants, share)

    def is_alias(self, name: str) -> bool:
        """Whether the configuration gives `name` a meaning, whoever serves it."""
        return name in self._aliases

    def fallbacks(self, model: str) -> tuple[str, ...]:
        """The models to try in turn where no replica of `model` can be sent a request."""
        return self._fallbacks.get(model, ())


NO_NAMES = ModelNames({}, {})
"""Every name is a model's own, and none has a fallback."""


def _at_share(variants: Variants, share: float) -> str:
    """The variant at `share` (0 to 1, 1 excluded) of all weights laid side by side."""
    rest = share * sum(weight for _, weight in variants)
    chosen = ""
    for model, weight in variants:
        if weight > 0.0:
            chosen = model
            if rest < weight:
                break
            rest -= weight
    return chosen


def _check_alias(alias: str, variants: Variants, aliases: Mapping[str, Variants]) -> None:
    where = f"models.aliases.{alias}"
    _check_name(alias, where)
    models = [model for model, _ in variants]
    _check_models(models, alias, where, aliases)
    for model, weight in variants:
        if not (isfinite(weight) and weight >= 0.0):
            raise ConfigError(f"{where} gives {model} the weight {weight}", hint="weights are numbers from 0")
    if not any(weight for _, weight in variants):
        raise ConfigError(f"{where} stands for no model", hint="give at least one model a weight above 0")
    if models == [alias]:
        raise ConfigError(f"{where} stands for itself", hint="take it out, or name another model beside it")


def _check_fallbacks(model: str, others: Sequence[str], aliases: Mapping[str, Variants]) -> None:
    where = f"models.fallbacks.{model}"
    _check_name(model, where)
    if model in aliases and all(target != model for target, _ in aliases[model]):
        models = ", ".join(target for target, _ in aliases[model])
        raise ConfigError(f"{where}: {model} is an alias", hint=f"give the fallbacks of what it stands for: {models}")
    if not others:
        raise ConfigError(f"{where} names no model", hint="take it out, or name a model")
    if model in others:
        raise ConfigError(f"{where} names {model} itself", hint="name other models")
    _check_models(others, model, where, aliases)


def _check_models(models: Sequence[str], owner: str, where: str, aliases: Mapping[str, Variants]) -> None:
    for model in models:
        _check_name(model, where)
        if models.count(model) > 1:
            raise ConfigError(f"{where} names {model} twice", hint="name each model once")
        if model != owner and model in aliases and all(target != model for target, _ in aliases[model]):
            raise ConfigError(
                f"{where} names {model}, which is an alias itself",
                hint=f"name the models: {', '.join(target for target, _ in aliases[model])}",
            )


def _check_name(name: str, where: str) -> None:
    if not (0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
        raise ConfigError(
            f"{where}: {name[:50]!r} cannot be a model's name",
            hint=f"names are 1 to {MAX_NAME_CHARACTERS} printable characters",
        )

"""Loads a user's own policy, named as `package.module:Class`."""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from poise.core.errors import ConfigError
from poise.routing.policy import Policy
from poise.routing.settings import check_names

_CHOOSE_HINT = "write it as def choose(self, request, fleet, now_s, tried), see docs/policies.md"


def load_custom_policy(path: str, settings: Mapping[str, object]) -> Policy:
    """An instance of the class that `path` names, called with `settings` as keyword arguments.

    Raises `ConfigError` if it cannot be imported, does not take the settings or is not a policy.
    """
    owner = f"policy {path}"
    policy = _make(_find_class(path, owner), settings, owner)
    _check_choose(policy, owner)
    return cast(Policy, policy)


def _find_class(path: str, owner: str) -> type[Any]:
    module_name, _, class_name = path.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{owner} cannot be imported: {_said(error)}",
            hint="name it as package.module:Class, and have its folder on PYTHONPATH",
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        problem = "does not exist" if found is None else f"is not a class but a {type(found).__name__}"
        raise ConfigError(f"{owner} {problem}", hint=f"classes in {module_name}: {', '.join(classes) or 'none'}")
    return found


def _make(policy_class: type[Any], settings: Mapping[str, object], owner: str) -> object:
    try:
        signature = inspect.signature(policy_class)
        parameters = signature.parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            check_names(settings, list(signature.parameters), owner)
        return policy_class(**settings)
    except ConfigError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise ConfigError(
            f"{owner} cannot be made: {_said(error)}", hint="its settings are passed as keyword arguments"
        ) from error


def _check_choose(policy: object, owner: str) -> None:
    choose = getattr(policy, "choose", None)
    if not callable(choose):
        raise ConfigError(f"{owner} has no method choose", hint=_CHOOSE_HINT)
    if inspect.iscoroutinefunction(choose):
        raise ConfigError(f"{owner} has an async choose; a policy decides at once", hint=_CHOOSE_HINT)
    try:
        inspect.signature(choose).bind("request", "fleet", "now_s", "tried")
    except TypeError as error:
        raise ConfigError(f"{owner} cannot be asked for a decision: {error}", hint=_CHOOSE_HINT) from None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

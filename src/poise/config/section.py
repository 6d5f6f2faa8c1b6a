"""What every group of keys has in common, and how a value that makes no sense is reported."""

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from poise.core.errors import ConfigError

T = TypeVar("T")


class Section(BaseModel):
    """A group of keys. A key that is not here is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def problem(text: str, hint: str) -> PydanticCustomError:
    """An error that validation collects with the others; see `poise.config.problems`."""
    return PydanticCustomError("poise", "{text}", {"text": text, "hint": hint})


def reported(check: Callable[[], T]) -> T:
    """What `check` gives; its `ConfigError` becomes such an error."""
    try:
        return check()
    except ConfigError as error:
        raise problem(error.args[0], error.hint or "") from None

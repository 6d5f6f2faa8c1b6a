"""Reads the text files that a configuration is made of."""

from pathlib import Path

from poise.core.errors import ConfigError


def read_text(path: str, what: str) -> str:
    """The content of the file at `path`; `what` it is to be, for the `ConfigError` that says why it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not UTF-8 text", hint="give a YAML file") from None

"""A credential that shows itself to nobody by accident."""

from collections.abc import Mapping

from poise.core.errors import ConfigError


class Secret:
    """Text that `reveal` gives, and that neither `str` nor `repr` shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def secret_from(environment: Mapping[str, str], variable: str, purpose: str) -> Secret:
    """What `variable` holds, to be sent in a header. Raises `ConfigError` if it is unset, empty, or cannot be sent."""
    text = environment.get(variable, "").strip()
    if not text:
        raise ConfigError(
            f"environment variable {variable}, which is to hold {purpose}, is not set",
            hint=f"export {variable}=... before the gateway is started",
        )
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ConfigError(
            f"environment variable {variable} does not hold {purpose}",
            hint="a key is visible ASCII characters without spaces",
        )
    return Secret(text)

"""Follows the configuration file: what is new in it is applied, what is wrong in it changes nothing."""

from collections.abc import Callable
from pathlib import Path

import structlog

from poise.config.load import ConfigInputs
from poise.config.settings import Settings
from poise.core.errors import ConfigError

log = structlog.get_logger()


class Reloader:
    """Reads `inputs` again on demand, and when the content of the file has changed; `apply` is given good settings.

    Content is compared, not times or names: the file may be replaced, a link to it moved, or its text put back.
    """

    def __init__(self, inputs: ConfigInputs, apply: Callable[[Settings], None]) -> None:
        self._inputs = inputs
        self._apply = apply
        self._in_force = self._last_seen = self._content()

    def look(self) -> None:
        """Reload if the file holds something new, and held the same at the last look: it may be half written."""
        seen, self._last_seen = self._last_seen, self._content()
        if self._last_seen == seen != self._in_force:
            self.reload()

    def reload(self) -> None:
        """Reload now. A configuration that cannot be used is refused, and the one in force stays."""
        self._in_force = self._last_seen = self._content()
        try:
            settings = self._inputs.load().settings
            self._apply(settings)
        except ConfigError as error:
            log.error("configuration refused, nothing is changed", problem=error.args[0], hint=error.hint)
        else:
            log.info("configuration applied")

    def _content(self) -> bytes | None:
        if self._inputs.path is None:
            return None
        try:
            return Path(self._inputs.path).read_bytes()
        except OSError:
            return None

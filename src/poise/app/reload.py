"""Follows the configuration file and the keys file: what is new in them is applied, what is wrong changes nothing."""

from collections.abc import Callable
from pathlib import Path

import structlog

from poise.admission.keys import KeyRing
from poise.config.load import ConfigInputs
from poise.config.parts import read_keys
from poise.config.settings import Settings
from poise.core.errors import ConfigError

log = structlog.get_logger()


class FollowedFile:
    """A file whose content is compared with what is in force. None as its path is a file that never changes.

    Content is compared, not times or names: the file may be replaced, a link to it moved, or its text put back.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._in_force = self._last_seen = self._content()

    def has_changed(self) -> bool:
        """Whether it holds something new, and held the same when last asked: it may be half written."""
        seen, self._last_seen = self._last_seen, self._content()
        return self._last_seen == seen != self._in_force

    def taken(self) -> None:
        """What it holds now is in force, or has been refused. Raises `ConfigError` if it cannot be read again."""
        self._in_force = self._last_seen = self._content()
        if self._is_pipe:
            raise ConfigError(f"{self._path} is a pipe, which can be read only once", hint="give a file")

    @property
    def _is_pipe(self) -> bool:
        """Reading from one could take for ever, and everybody would wait."""
        return self._path is not None and Path(self._path).is_fifo()

    def _content(self) -> bytes | None:
        if self._path is None or self._is_pipe:
            return None
        try:
            return Path(self._path).read_bytes()
        except OSError:
            return None


class Follower:
    """Takes up what is new in the file at `path`. What `_use` refuses with a `ConfigError` changes nothing."""

    refused: str
    applied: str

    def __init__(self, path: str | None) -> None:
        self._file = FollowedFile(path)

    def look(self) -> None:
        """Reload if there is something new."""
        if self._file.has_changed():
            self.reload()

    def reload(self) -> None:
        """Reload now. What cannot be used is refused, and what is in force stays."""
        try:
            self._file.taken()
            said = self._use()
        except ConfigError as error:
            log.error(self.refused, problem=error.args[0], hint=error.hint)
        else:
            log.info(self.applied, **said)

    def _use(self) -> dict[str, int]:
        """Read and apply; returns what is logged of it."""
        raise NotImplementedError


class Reloader(Follower):
    """Reads `inputs` again on demand, and when the content of the file has changed; `apply` is given good settings."""

    refused = "configuration refused, nothing is changed"
    applied = "configuration applied"

    def __init__(self, inputs: ConfigInputs, apply: Callable[[Settings], None]) -> None:
        super().__init__(inputs.path)
        self._inputs = inputs
        self._apply = apply

    def _use(self) -> dict[str, int]:
        self._apply(self._inputs.load().settings)
        return {}


class KeysReloader(Follower):
    """The same for the keys file at `path`; `apply` is given good keys."""

    refused = "keys file refused, the keys stay as they are"
    applied = "keys applied"

    def __init__(self, path: str, apply: Callable[[KeyRing], None]) -> None:
        super().__init__(path)
        self._path = path
        self._apply = apply

    def _use(self) -> dict[str, int]:
        keys = read_keys(self._path)
        self._apply(keys)
        return {"keys": len(keys)}

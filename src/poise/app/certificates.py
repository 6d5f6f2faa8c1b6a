"""Reads certificates again when their files change, so that a renewed one is used without a restart."""

from collections.abc import Callable, Mapping
from pathlib import Path
from ssl import SSLContext

import structlog

from poise.core.errors import ConfigError
from poise.core.replica import TlsFiles
from poise.core.tls import refresh

log = structlog.get_logger()

_Contents = tuple[bytes | None, ...]


class CertificateWatch:
    """Follows the files of the TLS contexts that `used` says are in use, by content.

    Certificate and key are replaced one after the other: they are read once both have stayed the same for a look, and a
    pair that does not fit is refused while the one in use stays.
    """

    def __init__(self, used: Callable[[], Mapping[TlsFiles, SSLContext]]) -> None:
        self._used = used
        self._read: dict[TlsFiles, _Contents] = {}
        self._last_seen: dict[TlsFiles, _Contents] = {}

    def look(self) -> None:
        """Read what has changed."""
        used = self._used()
        before, self._last_seen = self._last_seen, {files: _contents(files) for files in used}
        for files, seen in self._last_seen.items():
            if files not in self._read:
                self._read[files] = seen
            elif seen == before.get(files) and seen != self._read[files]:
                self._read[files] = seen
                self._refresh(used[files], files)
        for files in self._read.keys() - used.keys():
            del self._read[files]

    def _refresh(self, context: SSLContext, files: TlsFiles) -> None:
        try:
            refresh(context, files)
        except ConfigError as error:
            log.error("certificate refused, the one before is used on", problem=error.args[0], hint=error.hint)
        else:
            log.info("certificate read again", file=files.cert_file or files.ca_file)


def _contents(files: TlsFiles) -> _Contents:
    return tuple(_content(path) for path in (files.ca_file, files.cert_file, files.key_file) if path is not None)


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None

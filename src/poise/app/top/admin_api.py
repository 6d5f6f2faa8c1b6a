"""Reads a gateway's admin port, and says in plain words why that cannot be done."""

import json
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from poise.core.errors import ConfigError, PoiseError
from poise.core.secret import Secret

TIMEOUT_S = 5.0


class AdminError(PoiseError):
    """The admin port could not be read."""


class AdminApi:
    """The admin port at `url`, such as `http://127.0.0.1:8081`. Raises `ConfigError` for what is no such address."""

    def __init__(self, url: str, key: Secret | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if key is None else {"authorization": f"Bearer {key.reveal()}"}
        self._has_key = key is not None
        try:
            parts = urlsplit(self._url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host = ""
        if not self._host or parts.scheme not in ("http", "https") or parts.path or parts.query or parts.username:
            raise ConfigError(f"--admin {url} is not an address", hint="write it as http://127.0.0.1:8081")
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection

    def fleet(self) -> dict[str, Any]:
        """What `/api/fleet` says. Raises `AdminError`."""
        try:
            fleet = json.loads(self._get("/api/fleet"))
            return {"replicas": list(fleet["replicas"])}
        except (ValueError, TypeError, KeyError):
            raise self._stranger() from None

    def metrics(self) -> bytes:
        """The metrics page. Raises `AdminError`."""
        return self._get("/metrics")

    def _get(self, path: str) -> bytes:
        connection = self._connection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            body, status = answer.read(), answer.status
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AdminError(
                f"the admin port at {self._url} does not answer: {why.lower()}",
                hint="is the gateway running? poise serve says where its metrics are; name that with --admin URL",
            ) from None
        finally:
            connection.close()
        if status == 401:
            problem = "does not take the key in POISE_ADMIN_KEY" if self._has_key else "asks for a key"
            raise AdminError(f"the admin port at {self._url} {problem}", hint="export POISE_ADMIN_KEY=...")
        if status != 200:
            raise self._stranger()
        return body

    def _stranger(self) -> AdminError:
        return AdminError(
            f"what answers at {self._url} is not the admin port of a gateway",
            hint="the admin port is another than the one for requests: 8081 unless admin.port says otherwise",
        )

"""Certificates for loopback, made once for a run of the tests, and the switch that makes the kit speak TLS."""

import atexit
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from poise.core.replica import TlsFiles

_everywhere = False


class Authority:
    """A CA of its own in `folder`, which signs what it is asked to."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.ca_file = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.ca_file
        )

    def sign(
        self, name: str, alternatives: str = "IP:127.0.0.1,IP:127.0.0.2,DNS:localhost,DNS:engine.test"
    ) -> tuple[Path, Path]:
        """A new certificate for `alternatives` and its key, in files called `name`."""
        cert, key, request = (self.folder / f"{name}.{ending}" for ending in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternatives}\n")
        self._openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.ca_file, "-CAkey", self._key, "-days", "2", "-out", cert,
            "-extfile", extensions,
        )  # fmt: skip
        return cert, key

    @property
    def trust(self) -> ssl.SSLContext:
        """What a caller needs to believe its certificates."""
        return ssl.create_default_context(cafile=str(self.ca_file))

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@cache
def authority() -> Authority:
    """The one that the kit's servers have their certificate of."""
    folder = tempfile.mkdtemp(prefix="poise-certificates-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Authority(Path(folder))


@cache
def server_files() -> TlsFiles:
    """The certificate of the kit's servers, and who signed it."""
    cert, key = authority().sign("server")
    return TlsFiles(cert_file=str(cert), key_file=str(key))


def replica_files() -> TlsFiles:
    """What a client of the kit's servers trusts."""
    return TlsFiles(ca_file=str(authority().ca_file))


def server_tls() -> ssl.SSLContext | None:
    """What the kit's servers listen with: None unless TLS is spoken everywhere."""
    if not _everywhere:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = server_files()
    assert files.cert_file is not None
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


def client_tls() -> ssl.SSLContext | None:
    """What the kit's callers connect with: None unless TLS is spoken everywhere."""
    return authority().trust if _everywhere else None


@contextmanager
def tls_everywhere() -> Iterator[None]:
    """In this block callers, gateway and replicas of the kit speak TLS with each other."""
    global _everywhere
    before, _everywhere = _everywhere, True
    try:
        yield
    finally:
        _everywhere = before

"""TLS contexts for connections to replicas and from callers, made of files that may be replaced meanwhile."""

import ssl
from functools import cache

from poise.core.errors import ConfigError
from poise.core.replica import TlsFiles


@cache
def client_context(files: TlsFiles | None) -> ssl.SSLContext:
    """For connections to servers, whose certificates and names are checked: against the system's certificates, or those
    of `ca_file` alone. One for all that have the same files: reading the system's takes some 25 ms.

    Raises `ConfigError`.
    """
    context = ssl.create_default_context() if files is None or files.ca_file is None else _only(files.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files is not None and files.cert_file is not None:
        _load_certificate(context, files.cert_file, files.key_file)
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For connections from callers, who have to show a certificate if there is a `ca_file`. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    refresh(context, files)
    if files.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def refresh(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Read `files` again, for connections that are made from now on. Raises `ConfigError`, with nothing changed then.

    A certificate replaces the one before; those that are trusted are added to.
    """
    if files.ca_file is not None:
        _only(files.ca_file)  # a file that cannot be read must leave `context` as it is
    if files.cert_file is not None:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.cert_file, files.key_file)
        _load_certificate(context, files.cert_file, files.key_file)
    if files.ca_file is not None:
        context.load_verify_locations(files.ca_file)


def _only(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"CA file {ca_file} cannot be used: {_reason(error)}", hint="give a file of certificates in PEM"
        ) from None


def _load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"certificate {cert_file} with key {key_file or cert_file} cannot be used: {_reason(error)}",
            hint="give a chain in PEM, its own certificate first, and the key that belongs to it, without a password",
        ) from None


def _no_password() -> str:
    """Asked for where a key is encrypted; without it OpenSSL would ask whoever sits at the terminal."""
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

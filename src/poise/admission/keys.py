"""Who may call: API keys, known by their SHA-256 digests alone. Counterpart: `poise.admission.keys_file`."""

from collections.abc import Iterator, Mapping
from hashlib import sha256

import xxhash

from poise.admission.api_key import ApiKey

REMEMBERED_CREDENTIALS = 1024
"""Credentials recognised without SHA-256. One key has several spellings (`Bearer`, `bearer`, `x-api-key`)."""

_fingerprint = xxhash.xxh3_128_digest


class KeyRing:
    """The known keys, by digest. Never holds a key itself.

    Keys are looked up rather than compared in constant time: what the time of a lookup can give away are bits of a
    SHA-256 digest, and a caller can neither choose those of its guess nor get from them to the key.
    """

    __slots__ = ("_keys", "_remembered")

    def __init__(self, keys: Mapping[bytes, ApiKey]) -> None:
        """`keys` by the SHA-256 digest of the key."""
        self._keys = dict(keys)
        self._remembered: dict[bytes, ApiKey] = {}
        """Keys by a 128-bit fingerprint of the credential, a third of SHA-256's cost. It is no cryptographic hash, but
        to pass for an unknown key a caller would have to meet the 128 bits of that key blindly. Only good credentials
        are remembered, so that guesses cannot displace them."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys.values())

    def become(self, other: "KeyRing") -> None:
        """Hold the keys of `other` instead: whoever asks from now on is known by those."""
        self._keys = other._keys
        self._remembered.clear()

    def authenticate(self, credential: bytes | None) -> ApiKey | None:
        """The key in the value of an `Authorization` (scheme Bearer) or `x-api-key` header.

        None if there is no such header or the key is not known.
        """
        if credential is None:
            return None
        fingerprint = _fingerprint(credential)
        key = self._remembered.get(fingerprint)
        if key is None:
            key = self._keys.get(sha256(_key_of(credential)).digest())
            if key is not None:
                if len(self._remembered) >= REMEMBERED_CREDENTIALS:
                    self._remembered.clear()
                self._remembered[fingerprint] = key
        return key


def _key_of(credential: bytes) -> bytes:
    scheme, _, token = credential.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else credential.strip()

"""Reads the file of API keys."""

from poise.admission.keys import KeyRing


def read_keys(path: str) -> KeyRing:
    raise NotImplementedError

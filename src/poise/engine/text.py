"""Text as the simulated engine sees it: four bytes are one token, and blocks of text are known by chained hashes.

Two prompts that begin alike share blocks, and an answer that comes back in the next turn of its conversation is found
in the cache, as in a real engine: an answer's tokens are exactly four bytes, and prompts are padded to whole tokens.
"""

import random
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

TOKEN_BYTES = 4
_WORDS = tuple(b" " + word for word in b"the new can all and few one set run key map log sum row bit net".split())
"""Sixteen tokens, each of four bytes."""


def pad(text: bytes) -> bytes:
    """`text` with spaces up to a whole number of tokens, at least one."""
    return text + b" " * (-len(text) % TOKEN_BYTES) if text else b" " * TOKEN_BYTES


def token_count(text: bytes) -> int:
    """Tokens of `text`, rounded up."""
    return -(-len(text) // TOKEN_BYTES)


def block_hashes(text: bytes, block_tokens: int, *, seed: int) -> list[int]:
    """Chained hashes of the full blocks of `text`; `seed` separates models and cache salts."""
    size = block_tokens * TOKEN_BYTES
    hashes: list[int] = []
    parent = seed
    for start in range(0, len(text) - size + 1, size):
        parent = xxh3_64_intdigest(text[start : start + size], parent)
        hashes.append(parent)
    return hashes


def cache_seed(model: str, salt: str | None) -> int:
    """Seed of the hash chain for one model and one `cache_salt`."""
    return xxh3_64_intdigest(f"{model}\0{salt or ''}".encode())


def answer_text(prompt: bytes, tokens: int, *, seed: int) -> bytes:
    """An answer of `tokens` tokens that depends on the prompt and the seed alone: lower-case words, safe in JSON."""
    choices = random.Random(xxh3_64_intdigest(prompt, seed)).randbytes(tokens)
    return b"".join([_WORDS[choice & 15] for choice in choices])


def token_ids(text: bytes) -> list[int]:
    """One number a token, from which `from_token_ids` gets the text back."""
    return [int.from_bytes(text[start : start + TOKEN_BYTES], "big") for start in range(0, len(text), TOKEN_BYTES)]


def from_token_ids(ids: Sequence[int]) -> bytes:
    """The text of `ids`; zero bytes are padding."""
    return b"".join([(number & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "big").replace(b"\0", b"") for number in ids])

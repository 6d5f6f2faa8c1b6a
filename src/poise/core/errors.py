"""The errors Poise raises and the error bodies it answers with."""

import errno
import re
from dataclasses import dataclass


class PoiseError(Exception):
    """Base of all errors that a user can do something about; `hint` says what."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\nhint: {self.hint}" if self.hint else message


class ConfigError(PoiseError):
    """A setting, flag or file is wrong; nothing was started or changed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the gateway makes itself instead of a replica.

    `fault` names who has to act: `caller`, `gateway` or `replica`. `retry_after_s` becomes `Retry-After`.
    """

    status: int
    code: str
    message: str
    fault: str
    retry_after_s: int | None = None


def nothing_listens(error: OSError) -> bool:
    """Whether a connection failed because no process listens there, which no load can be the reason of.

    Where a host has several addresses the event loop joins their errors into the text of one.
    """
    no_way = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH}
    numbers = _numbers(error)
    return errno.ECONNREFUSED in numbers and numbers <= no_way


def is_exhausted(error: OSError) -> bool:
    """Whether a connection failed because this process, or this machine, can hold no more of them."""
    return not _numbers(error).isdisjoint({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def _numbers(error: OSError) -> set[int]:
    return {error.errno} if error.errno else {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}

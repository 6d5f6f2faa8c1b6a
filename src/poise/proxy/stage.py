"""The stages of a request."""

from typing import Final


class Stage:
    """Where an exchange is. Plain numbers: an enumeration's members cost four times as much to look up."""

    WAITING: Final = 0
    """In the central queue, until a replica has room."""
    CONNECTING: Final = 1
    SENT: Final = 2
    """No output has come."""
    ANSWERING: Final = 3
    """Output has been passed on: the request is committed to its replica."""
    TUNNELLED: Final = 4
    """The replica has switched protocols: the bytes are no longer looked at."""
    ENDED: Final = 5

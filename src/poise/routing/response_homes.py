"""Which replica stored which answer of the responses API: it alone can go on from there. Pure: times are passed in."""

from collections import OrderedDict
from typing import Final

MAX_RESPONSES: Final = 50_000
"""Some 10 MB. Which one a conversation goes on from is its last, so few of them are asked for again."""
MAX_ID_CHARACTERS: Final = 128
FORGOTTEN_AFTER_S: Final = 86400.0
"""After the last request that went on from there."""


class ResponseHomes:
    """Names of replicas by response id, those used last kept longest."""

    __slots__ = ("_homes", "_limit")

    def __init__(self, limit: int = MAX_RESPONSES) -> None:
        self._limit = limit
        self._homes: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def learn(self, response_id: str, replica: str, now_s: float) -> None:
        """`replica` has given an answer with this id."""
        if 0 < len(response_id) <= MAX_ID_CHARACTERS:
            self._homes[response_id] = (replica, now_s)
            self._homes.move_to_end(response_id)
            if len(self._homes) > self._limit:
                self._homes.popitem(last=False)

    def find(self, response_id: str, now_s: float) -> str | None:
        """The replica that has the answer with this id, None if it is not known any more."""
        home = self._homes.get(response_id)
        if home is None:
            return None
        if now_s - home[1] > FORGOTTEN_AFTER_S:
            del self._homes[response_id]
            return None
        self.learn(response_id, home[0], now_s)
        return home[0]

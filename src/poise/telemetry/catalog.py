"""The gateway's own `/v1/models`, kept ready in memory: asking for it asks no replica."""

from collections.abc import Mapping, Sequence

from poise.wire.models import ModelEntry, list_models, merge_models


class ModelCatalog:
    """The merged model list of the replicas that answer. Written by the poller, read by the data path."""

    def __init__(self) -> None:
        self._lists: Sequence[Sequence[ModelEntry]] = ()
        self._entries: Mapping[str, bytes] = {}
        self._page: bytes | None = None

    def page(self) -> bytes | None:
        """The list in JSON, None while no replica answers."""
        return self._page

    def entry(self, name: str) -> bytes | None:
        """One model's JSON object, None if no replica that answers has it."""
        return self._entries.get(name)

    def show(self, lists: Sequence[Sequence[ModelEntry]]) -> None:
        """Replace what is shown by the lists of the replicas that answer, in slot order."""
        if lists != self._lists:
            self._lists = lists
            self._entries = merge_models(lists)
            self._page = list_models(self._entries) if lists else None

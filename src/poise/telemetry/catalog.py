"""The gateway's own `/v1/models`, kept ready in memory: asking for it asks no replica."""

from collections.abc import Mapping, Sequence

from poise.wire.models import ModelEntry, alias_entries, list_models, merge_models


class ModelCatalog:
    """The merged model list of the replicas that answer. Written by the poller, read by the data path."""

    def __init__(self) -> None:
        self._lists: Sequence[Sequence[ModelEntry]] = ()
        self._aliases: Mapping[str, Sequence[str]] = {}
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
            self._merge()

    def show_aliases(self, aliases: Mapping[str, Sequence[str]]) -> None:
        """List these names too, each as the first of its models that a replica which answers has."""
        self._aliases = aliases
        self._merge()

    def _merge(self) -> None:
        models = merge_models(self._lists)
        self._entries = models | alias_entries(models, self._aliases)
        self._page = list_models(self._entries) if self._lists else None

"""How long requests take, by model. The number of models is bounded, whatever callers ask for and replicas serve."""

from collections.abc import Collection, Iterator

from poise.report.histogram import LATENCY_BUCKETS_S, Histogram

TOKEN_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
"""For the time between two tokens."""
MAX_MODELS = 64
"""Models with histograms of their own: one engine may serve thousands of adapters."""
OTHER = "other"
"""What all other models are called together, among them those that no replica serves."""


class ModelTimes:
    """The times of one model's requests, in seconds.

    `first_output_s` of answers that have begun, `end_to_end_s` of those that are complete, and `output_token_s`, the
    mean time of the output tokens after the first (TPOT), of complete streams whose usage was given.
    """

    __slots__ = ("end_to_end_s", "first_output_s", "output_token_s")

    def __init__(self) -> None:
        self.first_output_s = Histogram(LATENCY_BUCKETS_S)
        self.output_token_s = Histogram(TOKEN_BUCKETS_S)
        self.end_to_end_s = Histogram(LATENCY_BUCKETS_S)


class TimesByModel:
    """The times of the first `MAX_MODELS` served models that were asked for, and of all others together."""

    __slots__ = ("_models", "_other", "_served")

    def __init__(self) -> None:
        self._models: dict[str | None, ModelTimes] = {}
        self._other = ModelTimes()
        self._served: Collection[str | None] = ()

    def __iter__(self) -> Iterator[tuple[str, ModelTimes]]:
        """Each model's name and times, `OTHER` last."""
        named = [(model, times) for model, times in self._models.items() if model is not None]
        return iter([*named, (OTHER, self._other)])

    def of(self, model: str | None) -> ModelTimes:
        """Where the times of a request for `model` belong."""
        times = self._models.get(model)
        if times is not None:
            return times
        if model not in self._served or model is None or model == OTHER or len(self._models) >= MAX_MODELS:
            return self._other
        times = self._models[model] = ModelTimes()
        return times

    def follow(self, served: Collection[str | None]) -> None:
        """These models are served now: the times of all others are forgotten."""
        self._served = served
        self._models = {model: times for model, times in self._models.items() if model in served}

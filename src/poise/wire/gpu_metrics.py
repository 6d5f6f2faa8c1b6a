"""A DCGM exporter's page as GPU utilisation per GPU, and its mean over the GPUs of one replica."""

from collections.abc import Mapping, Sequence

from poise.wire.prometheus import MetricsError, PageScanner, parse_labels, parse_value, sample_pattern

_FULL_SCALE = {b"DCGM_FI_DEV_GPU_UTIL": 100.0, b"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0}
"""Metric -> its value at full utilisation, the preferred metric first (NVIDIA's DCGM field identifiers)."""
_PATTERN = sample_pattern(name.decode() for name in _FULL_SCALE)


def read_gpu_page(page: bytes) -> dict[int, float]:
    """GPU number -> utilisation, 0..1. Raises `MetricsError` if the page has none.

    A GPU that several containers share has a line for each of them, with the same figure; its largest is taken.
    """
    found: dict[bytes, dict[int, float]] = {name: {} for name in _FULL_SCALE}
    for name, raw_labels, raw_value in PageScanner(_PATTERN).scan(page):
        gpu, value = parse_labels(raw_labels).get(b"gpu", b""), parse_value(raw_value)
        if gpu.isdigit() and value is not None and value <= _FULL_SCALE[name]:
            by_gpu = found[name]
            by_gpu[int(gpu)] = max(by_gpu.get(int(gpu), 0.0), value / _FULL_SCALE[name])
    utilisation = next((by_gpu for by_gpu in found.values() if by_gpu), None)
    if utilisation is None:
        raise MetricsError(
            "the gpu page has no utilisation of any gpu",
            hint="let the DCGM exporter collect DCGM_FI_DEV_GPU_UTIL or DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        )
    return utilisation


def mean_utilisation(by_gpu: Mapping[int, float], gpus: Sequence[int]) -> float:
    """Mean over `gpus`, over all on the page if none are named. Raises `MetricsError` if one of them is missing."""
    missing = [gpu for gpu in gpus if gpu not in by_gpu]
    if missing:
        raise MetricsError(
            f"the gpu page has no gpu {missing[0]}, it has {', '.join(map(str, sorted(by_gpu)))}",
            hint="check the replica's gpus against the gpu labels of its gpu_metrics_url",
        )
    wanted = gpus or list(by_gpu)
    return sum(by_gpu[gpu] for gpu in wanted) / len(wanted)

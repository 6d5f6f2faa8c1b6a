"""GPU utilisation from a DCGM exporter's page."""

from pathlib import Path

import pytest

from poise.wire.gpu_metrics import mean_utilisation, read_gpu_page
from poise.wire.prometheus import MetricsError

PAGE = (Path(__file__).parents[2] / "data" / "engines" / "dcgm.txt").read_bytes()


def test_a_gpu_shared_by_containers_counts_once() -> None:
    assert read_gpu_page(PAGE) == {0: 0.9, 1: 0.3, 10: 0.0}


@pytest.mark.parametrize(("gpus", "mean"), [((0,), 0.9), ((0, 1), 0.6), ((10, 1), 0.15), ((), 0.4)])
def test_the_mean_is_over_the_replicas_own_gpus(gpus: tuple[int, ...], mean: float) -> None:
    assert mean_utilisation(read_gpu_page(PAGE), gpus) == pytest.approx(mean)


def test_a_gpu_that_the_page_lacks_is_an_error_not_a_zero() -> None:
    with pytest.raises(MetricsError, match="no gpu 2, it has 0, 1, 10"):
        mean_utilisation(read_gpu_page(PAGE), (0, 2))


def test_the_profiling_ratio_is_used_where_utilisation_is_not_exported() -> None:
    page = PAGE.replace(b"DCGM_FI_DEV_GPU_UTIL{", b"DCGM_FI_DEV_GPU_UTIL_OTHER{")
    assert read_gpu_page(page) == {0: pytest.approx(0.99563)}


@pytest.mark.parametrize("value", [b"NaN", b"9223372036854775794", b"-1"])
def test_a_blank_value_is_no_utilisation(value: bytes) -> None:
    with pytest.raises(MetricsError, match="no utilisation"):
        read_gpu_page(b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} ' + value + b"\n")


@pytest.mark.parametrize(("page", "said"), [(b"", "empty"), (b"<html>\n", "HTML"), (PAGE[:700], "cut off")])
def test_what_is_no_gpu_page_is_an_error(page: bytes, said: str) -> None:
    with pytest.raises(MetricsError, match=said):
        read_gpu_page(page)

"""Engine pages, real and real-shaped, as readings; and everything that must not be taken for a figure."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.reading import LoadReading
from poise.wire.metrics import read_metrics
from poise.wire.prometheus import MetricsError

DATA = Path(__file__).parents[2] / "data"
LOAD = (DATA / "vllm" / "metrics_load_8001.txt").read_bytes()
DP2 = (DATA / "vllm" / "metrics_dp2.txt").read_bytes()
FRESH = (DATA / "vllm" / "metrics_fresh.txt").read_bytes()
ENGINES = {path.stem: path.read_bytes() for path in (DATA / "engines").glob("*.txt")}
PAGES = {"load": LOAD, "dp2": DP2, "fresh": FRESH} | {name: ENGINES[name] for name in ("sglang", "llamacpp", "tgi")}
ALL_PAGES = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


def test_a_vllm_page_under_load() -> None:
    assert read_metrics(LOAD) == LoadReading(
        running=4, waiting=8, kv_usage_ratio=0.012698412698412653, asleep=False, kv_capacity_tokens=131072,
        block_size_tokens=32, prompt_tokens=3016, generation_tokens=1739, prefix_queries_tokens=3016,
        prefix_hits_tokens=1664, preemptions=0,
    )  # fmt: skip


def test_a_fresh_engine_reads_as_idle_not_as_unknown() -> None:
    reading = read_metrics(FRESH)
    assert (reading.running, reading.waiting, reading.kv_usage_ratio, reading.asleep) == (0, 0, 0, False)


def test_ranks_of_one_server_are_told_apart_and_added_up() -> None:
    first, second, whole = read_metrics(DP2, 0), read_metrics(DP2, 1), read_metrics(DP2)
    assert (first.generation_tokens, second.generation_tokens, whole.generation_tokens) == (2050, 4550, 6600)
    assert (first.prompt_tokens, second.prompt_tokens, whole.prompt_tokens) == (70, 210, 280)
    assert (first.kv_capacity_tokens, second.kv_capacity_tokens, whole.kv_capacity_tokens) == (131072, 131072, 262144)
    assert first.block_size_tokens == whole.block_size_tokens == 32


def test_a_server_of_several_ranks_adds_requests_and_averages_kv_usage() -> None:
    page = _vllm(
        'num_requests_running{engine="0"} 3', 'num_requests_running{engine="1"} 4',
        'kv_cache_usage_perc{engine="1"} 0.5', 'kv_cache_usage_perc{engine="0"} 0.1',
    )  # fmt: skip
    whole, second = read_metrics(page), read_metrics(page, 1)
    assert (whole.running, whole.kv_usage_ratio) == (7, pytest.approx(0.3))
    assert (second.running, second.kv_usage_ratio) == (4, 0.5)


@pytest.mark.parametrize(("rank", "said"), [(2, "it has 0, 1"), (10, "it has 0, 1")])
def test_a_rank_that_the_server_lacks_is_an_error_that_names_those_it_has(rank: int, said: str) -> None:
    with pytest.raises(MetricsError, match=said):
        read_metrics(DP2, rank)


def test_blocks_of_a_server_are_those_of_all_its_ranks() -> None:
    page = _vllm(*(f'cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="1000"}} 1.0' for rank in "01"))
    assert read_metrics(page).kv_capacity_tokens == 16000
    assert read_metrics(page, 1).kv_capacity_tokens == 8000


@pytest.mark.parametrize("label", ["None", "", "12.5", "-1", "0", "9" * 5000])
def test_a_capacity_that_is_no_count_is_unknown(label: str) -> None:
    reading = read_metrics(_vllm(f'cache_config_info{{block_size="16",num_gpu_blocks="{label}"}} 1.0'))
    assert reading.kv_capacity_tokens is None


def test_running_and_waiting_may_come_late() -> None:
    page = _without(DP2, b"vllm:num_requests_")
    reading = read_metrics(page)
    assert (reading.running, reading.waiting) == (None, None), "an engine that has generated calls them otherwise"
    page = re.sub(rb"(?m)^(vllm:generation_tokens_total\{.*\}) .*$", rb"\1 0.0", page)
    for rank in (None, 0, 1):
        reading = read_metrics(page, rank)
        assert (reading.running, reading.waiting) == (0, 0), "an engine that has not been asked yet"


def test_one_missing_gauge_of_the_two_is_unknown() -> None:
    reading = read_metrics(_without(FRESH, b"vllm:num_requests_waiting{"))
    assert (reading.running, reading.waiting) == (0, None)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("gpu_cache_usage_perc", "kv_cache_usage_perc", "kv_usage_ratio"),
        ("gpu_prefix_cache_hits_total", "prefix_cache_hits_total", "prefix_hits_tokens"),
        ("gpu_prefix_cache_queries", "prefix_cache_queries_total", "prefix_queries_tokens"),
        ("prompt_tokens", "prompt_tokens_total", "prompt_tokens"),
        ("num_preemptions", "num_preemptions_total", "preemptions"),
    ],
)
def test_old_and_new_names_are_one_quantity(old: str, new: str, field: str) -> None:
    only_old, only_new = _vllm(f"{old} 0.25"), _vllm(f"{new} 0.25")
    assert getattr(read_metrics(only_old), field) == getattr(read_metrics(only_new), field) == 0.25
    for lines in ([f"{old} 0.9", f"{new} 0.25"], [f"{new} 0.25", f"{old} 0.9"]):
        assert getattr(read_metrics(_vllm(*lines)), field) == 0.25, "the current name is believed, nothing is added"


@pytest.mark.parametrize(
    "line",
    [
        "prompt_tokens_created 1.79e+09", "prompt_tokens_by_source_total 7", "request_prompt_tokens_sum 7",
        "iteration_tokens_total_sum 7", "num_requests_waiting_by_reason 7", "external_prefix_cache_hits_total 7",
        "kv_cache_usage_percent 7", "my_num_requests_running 7",
    ],
)  # fmt: skip
def test_names_that_only_look_alike_say_nothing(line: str) -> None:
    assert read_metrics(_vllm(line, "num_preemptions_total 5")) == LoadReading(preemptions=5)


@pytest.mark.parametrize(
    ("states", "asleep"),
    [
        ('{sleep_state="awake"} 1.0', False), ('{sleep_state="awake"} 0.0', True),
        ('{sleep_state="weights_offloaded"} 1.0', None),
    ],
)  # fmt: skip
def test_sleep_is_seen(states: str, asleep: bool | None) -> None:
    assert read_metrics(_vllm(f"engine_sleep_state{states}")).asleep is asleep


def test_a_server_with_one_rank_asleep_is_asleep() -> None:
    page = _vllm(*(f'engine_sleep_state{{engine="{rank}",sleep_state="awake"}} {rank}.0' for rank in "01"))
    assert [read_metrics(page, rank).asleep for rank in (0, 1, None)] == [True, False, True]


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "-1", "1e400", "x", "1.2.3"])
def test_a_value_that_is_no_figure_is_unknown_not_zero(value: str) -> None:
    reading = read_metrics(_vllm('kv_cache_usage_perc{engine="0"} 0.1', f'kv_cache_usage_perc{{engine="1"}} {value}'))
    assert reading.kv_usage_ratio is None


def test_usage_is_never_above_one() -> None:
    assert read_metrics(_vllm("kv_cache_usage_perc 1.0000000001")).kv_usage_ratio == 1.0


@pytest.mark.parametrize("model", [r"a\"b", r"a\\", "a}b", "a} 5", r"x,engine=\"7\"", "x,engine=", "ü", "{", "a b,c=d"])
def test_odd_label_values_break_nothing(model: str) -> None:
    for labels in (f'engine="1",model_name="{model}"', f'model_name="{model}",engine="1"'):
        assert read_metrics(_vllm(f"num_requests_running{{{labels}}} 3.0"), 1).running == 3


def test_sglang() -> None:
    expected = LoadReading(
        running=162, waiting=2826, kv_usage_ratio=0.28, kv_capacity_tokens=442353, block_size_tokens=1,
        prompt_tokens=8128902, generation_tokens=7557572, prefix_queries_tokens=8128902, prefix_hits_tokens=61000,
        preemptions=48,
    )  # fmt: skip
    assert read_metrics(ENGINES["sglang"]) == expected
    assert read_metrics(ENGINES["sglang"].replace(b"sglang:", b"sglang_")) == expected


def test_llama_cpp() -> None:
    assert read_metrics(ENGINES["llamacpp"]) == LoadReading(
        running=2, waiting=1, kv_usage_ratio=0.125, prompt_tokens=3156, generation_tokens=812
    )
    newer = read_metrics(_without(ENGINES["llamacpp"], b"llamacpp:kv_cache_usage_ratio"))
    assert (newer.kv_usage_ratio, newer.running) == (None, 2)


def test_tgi() -> None:
    assert read_metrics(ENGINES["tgi"]) == LoadReading(
        running=5, waiting=3, prompt_tokens=91000, generation_tokens=50000
    )


def test_tensorrt_llm() -> None:
    assert read_metrics(ENGINES["trtllm"]) == LoadReading(
        running=7, waiting=2, kv_usage_ratio=0.62, kv_capacity_tokens=65536, block_size_tokens=32
    )


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (b"", "empty"), (b" \n\n", "empty"), (b"<!doctype html>\n<p>hello</p>\n", "HTML"),
        (b'{"error": "no"}\n', "JSON"), (b"[]", "JSON"), (LOAD[:5000], "cut off"),
        (b"process_open_fds 46.0\n", "no metric of a known engine"), (b"Not Found\n", "no metric of a known engine"),
    ],
)  # fmt: skip
def test_what_is_no_engine_page_is_an_error_that_says_why(page: bytes, said: str) -> None:
    with pytest.raises(MetricsError, match=f"{said}(.|\n)*hint: "):
        read_metrics(page)


def test_windows_line_ends_timestamps_and_tabs_are_read() -> None:
    page = b'vllm:num_requests_running\t4.0\r\nvllm:kv_cache_usage_perc{engine="0"}  0.5 1796072873000\r\n'
    reading = read_metrics(page)
    assert (reading.running, reading.kv_usage_ratio) == (4, 0.5)


@ALL_PAGES
@given(seed=st.integers())
def test_the_order_of_lines_and_labels_does_not_matter(page: bytes, seed: int) -> None:
    chance = random.Random(seed)
    lines = [_shuffle_labels(line, chance) for line in page.splitlines()]
    chance.shuffle(lines)
    assert read_metrics(b"\n".join(lines) + b"\n") == read_metrics(page)


@ALL_PAGES
@given(data=st.data())
def test_a_page_cut_anywhere_is_an_error_or_says_less_but_nothing_else(page: bytes, data: st.DataObject) -> None:
    whole = read_metrics(page)
    for cut in (
        data.draw(st.integers(0, len(page) - 1)),
        data.draw(st.sampled_from([end.end() for end in re.finditer(rb"\n", page)])),
    ):
        try:
            part = read_metrics(page[:cut])
        except MetricsError:
            continue
        for name in ("running", "waiting", "kv_usage_ratio", "prompt_tokens", "generation_tokens"):
            said, true = getattr(part, name), getattr(whole, name)
            assert said is None or said == true or 0 < said < true  # less where a rank or a source is cut off


@given(noise=st.binary(max_size=300), at=st.integers(0, 14000))
def test_bytes_that_were_damaged_raise_nothing_but_the_typed_error(noise: bytes, at: int) -> None:
    page = LOAD[:at] + noise + LOAD[at + len(noise) :]
    try:
        reading = read_metrics(page)
    except MetricsError:
        return
    assert reading.kv_usage_ratio is None or 0 <= reading.kv_usage_ratio <= 1


def _vllm(*lines: str) -> bytes:
    return "".join(f"vllm:{line}\n" for line in lines).encode()


def _without(page: bytes, start: bytes) -> bytes:
    return b"".join(line for line in page.splitlines(keepends=True) if not line.startswith(start))


def _shuffle_labels(line: bytes, chance: random.Random) -> bytes:
    match = re.fullmatch(rb"([^#{ ]+)\{(.*)\} (\S+)", line)
    if match is None:
        return line
    labels = re.findall(rb'\w+="(?:[^"\\]|\\.)*"', match[2])
    chance.shuffle(labels)
    return match[1] + b"{" + b",".join(labels) + b"} " + match[3]

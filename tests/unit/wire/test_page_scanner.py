"""A scanner that remembers a server's last page finds the same lines as one that sees it for the first time."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.wire import prometheus
from poise.wire.prometheus import MetricsError, PageScanner, sample_pattern

PAGE = (Path(__file__).parents[2] / "data" / "vllm" / "metrics_dp2.txt").read_bytes()
NAMES = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total", "vllm:absent_total")
PATTERN = sample_pattern(NAMES)


def _scanner() -> PageScanner:
    scanner = PageScanner(PATTERN)
    scanner.scan(PAGE)
    return scanner


def _whole_scans(scanner: PageScanner, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    seen: list[bytes] = []
    whole = scanner._scan_whole
    monkeypatch.setattr(scanner, "_scan_whole", lambda page: seen.append(page) or whole(page))
    return seen


@given(seeds=st.lists(st.integers(), min_size=1, max_size=5), changed_lines=st.integers(0, 700))
def test_values_of_any_width_are_found(seeds: list[int], changed_lines: int) -> None:
    scanner, page = _scanner(), PAGE
    for seed in seeds:
        chance = random.Random(seed)
        lines = page.splitlines(keepends=True)
        for index in chance.sample(range(len(lines)), min(changed_lines, len(lines))):
            if not lines[index].startswith(b"#"):
                value = chance.choice([b"0.0", b"7", b"1.5e+07", b"123456.789", b"NaN"])
                lines[index] = re.sub(rb"\S+\n$", value + b"\n", lines[index])
        page = b"".join(lines)
        assert scanner.scan(page) == PageScanner(PATTERN).scan(page)


@given(data=st.data())
def test_lines_that_come_and_go_are_noticed(data: st.DataObject) -> None:
    scanner, lines = _scanner(), PAGE.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        lines.insert(at, b'vllm:num_requests_running{engine="2",model_name="tiny"} 5.0\n')
    else:
        lines = [line for line in lines if b'vllm:kv_cache_usage_perc{engine="1"' not in line]
    page = b"".join(lines)
    assert scanner.scan(page) == PageScanner(PATTERN).scan(page)


@given(cut=st.integers(0, len(PAGE)))
def test_a_page_cut_short_is_found_to_be_so(cut: int) -> None:
    scanner = _scanner()
    try:
        lines = scanner.scan(PAGE[:cut])
    except MetricsError:
        return
    assert lines == PageScanner(PATTERN).scan(PAGE[:cut])


def test_an_unchanged_layout_is_not_scanned_whole_but_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    scanner = _scanner()
    seen = _whole_scans(scanner, monkeypatch)
    expected = PageScanner(PATTERN).scan(PAGE)
    for _ in range(prometheus.REMEMBERED_SCANS):
        assert scanner.scan(PAGE) == expected
    assert seen == []
    scanner.scan(PAGE)
    assert seen == [PAGE]


@pytest.mark.parametrize(
    "damaged",
    [
        re.sub(rb'(\nvllm:kv_cache_usage_perc\{engine="0",.*\} ).*', rb"\1", PAGE),
        PAGE.replace(b"\nvllm:kv_cache_usage_perc{", b"\nvllm:kv_cache_usage_perc_{"),
        PAGE.replace(b"\nvllm:kv_cache_usage_perc{", b"\n#llm:kv_cache_usage_perc{"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_quite_the_same_is_not_taken_for_it(damaged: bytes) -> None:
    assert _scanner().scan(damaged) == PageScanner(PATTERN).scan(damaged)


def test_names_that_begin_alike_are_told_apart() -> None:
    page = b"vllm:a 1\nvllm:a_total 2\nvllm:ab 3\nxvllm:a 4\nvllm:a{} 5\n# vllm:a 6\n"
    assert PageScanner(sample_pattern(["vllm:a", "vllm:a_total"])).scan(page) == [
        (b"vllm:a", b"", b"1"), (b"vllm:a_total", b"", b"2"), (b"vllm:a", b"", b"5"),
    ]  # fmt: skip

"""The request log: one JSON line for each request, and a disk that fails harms nobody."""

import errno
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.proxy import request_log
from poise.proxy.request_log import RequestLine, RequestLog

texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
entries = st.builds(
    RequestLine,
    request_id=st.text(st.characters(codec="ascii"), max_size=20), route=st.sampled_from(["chat", "models"]),
    outcome=st.just("completed"), status=st.integers(100, 599), replica=texts, reason=texts,
    attempts=st.integers(0, 3), model=texts, stream=st.booleans(), key=texts,
    queue_s=st.none() | st.floats(0, 1e6), cached_tokens=st.none() | st.integers(0, 2**40),
    first_output_s=st.none() | st.floats(0, 1e6), duration_s=st.floats(0, 1e6),
    prompt_tokens=st.none() | st.integers(0, 2**40), output_tokens=st.none() | st.integers(0, 2**40), error=texts,
    at=st.just(0.0),
)  # fmt: skip
ENTRY = RequestLine("id-1", "chat", "completed", 200, "r1", "home", 1, "m", True, None, 0.0, 0.1, 0.2, 3, 2, 4)


@pytest.fixture(autouse=True)
def _at_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "wall_time_s", lambda: 5.0)


@given(batches=st.lists(st.lists(entries, max_size=4), max_size=4))
def test_every_line_is_written_once_in_order(batches: list[list[RequestLine]], tmp_path_factory: object) -> None:
    path = tmp_path_factory.mktemp("log") / "requests"  # type: ignore[attr-defined]
    log = RequestLog(str(path))
    for batch in batches:
        for entry in batch:
            log.write(entry)
        log.flush()
    log.close()
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    expected = [msgspec.to_builtins(entry) | {"at": 5.0} for batch in batches for entry in batch]
    assert [json.loads(line) for line in lines] == expected


def test_what_waits_is_written_at_the_close_and_a_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    for written_before in (0, 1):
        log = RequestLog(str(path))
        log.write(ENTRY)
        assert path.read_bytes().count(b"\n") == written_before, "nothing before the flush"
        log.close()
    assert path.read_bytes().count(b"\n") == 2
    assert (log.error, log.lost_lines) == (None, 0)


def test_a_dash_is_standard_error_and_stays_open(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = RequestLog("-")
    log.write(ENTRY)
    log.close()
    RequestLog("-").close()
    written = capfdbinary.readouterr()
    assert json.loads(written.err)["request_id"] == "id-1"
    assert written.out == b""


def test_a_full_disk_loses_lines_keeps_the_first_error_and_goes_on() -> None:
    log = RequestLog("/dev/full")
    for _ in range(3):
        log.write(ENTRY)
        log.write(ENTRY)
        log.flush()
    log.close()
    assert log.error is not None
    assert log.error.errno == errno.ENOSPC
    assert log.lost_lines == 6


def test_a_path_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        RequestLog(str(tmp_path / "absent" / "requests"))

"""A log file whose disk writes little at a time, fails, hangs, or whose file is moved away under it."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.proxy import log_file
from poise.proxy.log_file import LogFile


class Disk:
    """A file that takes as many bytes at a time as it is told, None for one that would block, or fails with -1."""

    def __init__(self, path: Path, steps: list[int | None]) -> None:
        self._file = path.open("ab", buffering=0)
        self._steps = iter(steps)

    def write(self, data: memoryview) -> int | None:
        """Write a part of `data`."""
        step = next(self._steps, len(data))
        if step == -1:
            raise OSError(errno.ENOSPC, "full")
        return None if step is None else self._file.write(data[:step])

    def fileno(self) -> int:
        """As of a file."""
        return self._file.fileno()

    def close(self) -> None:
        """As of a file."""
        self._file.close()


@contextmanager
def log_on(disk: Disk, path: Path) -> Iterator[LogFile]:
    """A log on `disk`, closed at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFile, "_open", lambda self: disk)
        log = LogFile(str(path))
        yield log
        log.close()


steps = st.lists(st.none() | st.integers(1, 9), max_size=30)


@given(blocks=st.lists(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")), max_size=3)), steps=steps)
def test_short_writes_lose_nothing(
    blocks: list[list[bytes]], steps: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "lines"
    with log_on(Disk(path, steps), path) as log:
        for lines in blocks:
            log.append(b"".join(line + b"\n" for line in lines))
    assert path.read_bytes() == b"".join(line + b"\n" for lines in blocks for line in lines)
    assert (log.lost_lines, log.error) == (0, None)


@given(steps=st.lists(st.integers(1, 9) | st.just(-1), max_size=12))
def test_a_disk_that_fails_loses_whole_lines_and_counts_them(
    steps: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "lines"
    sent = [b"line %d" % number for number in range(10)]
    with log_on(Disk(path, steps), path) as log:
        for first, second in zip(sent[::2], sent[1::2], strict=True):
            log.append(first + b"\n" + second + b"\n")
    kept = [line for line in path.read_bytes().split(b"\n") if line in sent]
    assert len(kept) >= len(sent) - log.lost_lines
    assert [line for line in sent if line in kept] == kept, "in order, none twice"
    assert (log.lost_lines > 0) == (log.error is not None)


@pytest.mark.parametrize("said", [True, False])
def test_a_file_that_was_moved_is_followed_by_a_new_one(tmp_path: Path, said: bool) -> None:
    path, moved = tmp_path / "lines", tmp_path / "lines.1"
    log = LogFile(str(path))
    log.append(b"old\n")
    log.close()
    log = LogFile(str(path))
    path.rename(moved)
    if said:
        log.reopen()
    log.append(b"new\n")
    log.close()
    assert (moved.read_bytes(), path.read_bytes()) == (b"old\n", b"new\n")


def test_a_folder_that_is_gone_keeps_the_old_file_and_says_so(tmp_path: Path) -> None:
    folder, moved = tmp_path / "logs", tmp_path / "old"
    folder.mkdir()
    log = LogFile(str(folder / "lines"))
    folder.rename(moved)
    log.append(b"one\n")
    log.close()
    assert (moved / "lines").read_bytes() == b"one\n"
    assert log.error is not None
    assert log.error.errno == errno.ENOENT
    assert log.lost_lines == 0


def test_a_disk_that_hangs_holds_nobody_up_and_what_it_cannot_take_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody reads."""
    monkeypatch.setattr(log_file, "WAITING_BYTES", 1000)
    monkeypatch.setattr(log_file, "CLOSE_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = LogFile(str(pipe))
    line = b"x" * 999 + b"\n"
    for _ in range(300):  # a pipe holds 64 KiB
        log.append(line)
    log.close()
    assert log.lost_lines > 200
    os.close(reader)  # the thread's write fails, and it ends
    thread: Any = log._writer
    thread.join(5)
    assert thread not in threading.enumerate()

"""A file that lines are appended to in a thread of its own: a disk that is slow, full or gone holds nobody up."""

import os
import select
import stat
from io import FileIO
from queue import SimpleQueue
from threading import Thread

WAITING_BYTES = 16 * 1024 * 1024
"""What may wait for a slow disk; what comes on top is lost."""
CLOSE_S = 2.0
"""How long the end of a process waits for the disk."""
STANDARD_ERROR = 2


class LogFile:
    """Appends blocks of whole lines to the file at `path`, `-` being standard error. Raises `OSError` if it cannot.

    A file that was moved or removed is left and a new one begun, at once or when `reopen` is called. What cannot be
    written is lost: `lost_lines` says how much, `error` keeps the first reason. Every method belongs to one thread.
    """

    def __init__(self, path: str) -> None:
        self.error: OSError | None = None
        self._path = path
        self._file = self._open()
        self._blocks: SimpleQueue[bytes | None] = SimpleQueue()
        self._torn = False
        """Whether the last line in the file has no end, because the disk was full in its midst."""
        self._given_bytes = self._refused_lines = 0
        """Counted by the owner ..."""
        self._taken_bytes = self._failed_lines = 0
        """... and by the thread: two writers of one number could lose counts."""
        self._must_reopen = self._ends = False
        self._writer = Thread(target=self._run, name="request log", daemon=True)
        self._writer.start()

    @property
    def lost_lines(self) -> int:
        """Lines that will never be in the file."""
        return self._refused_lines + self._failed_lines

    def append(self, block: bytes) -> None:
        """Write `block`, which ends with a line end, soon."""
        if self._given_bytes - self._taken_bytes > WAITING_BYTES:
            self._refused_lines += block.count(b"\n")
            return
        self._given_bytes += len(block)
        self._blocks.put(block)

    def reopen(self) -> None:
        """The file may have been moved: go on in one with the name that was given."""
        self._must_reopen = True
        self._blocks.put(b"")

    def close(self) -> None:
        """Write what waits, for `CLOSE_S` at most, and close the file."""
        self._blocks.put(None)
        self._writer.join(CLOSE_S)
        if self._writer.is_alive():
            self._refused_lines += 1  # at least: the disk has not said what became of the last block

    # -- the thread's side

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            if self._must_reopen or self._was_moved():
                self._begin_anew()
            self._write(block)
            self._taken_bytes += len(block)
        self._file.close()

    def _open(self) -> FileIO:
        if self._path == "-":
            return FileIO(STANDARD_ERROR, "ab", closefd=False)
        return FileIO(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644), "ab")

    def _begin_anew(self) -> None:
        self._must_reopen = False
        try:
            file = self._open()
        except OSError as error:
            self.error = self.error or error  # the old file is better than none
            return
        self._file.close()
        self._file, self._torn = file, False

    def _was_moved(self) -> bool:
        here = os.fstat(self._file.fileno())
        if not stat.S_ISREG(here.st_mode) or self._path == "-":
            return False
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def _write(self, block: bytes) -> None:
        left = memoryview(b"\n" + block if self._torn and block else block)
        try:
            while left:
                written = self._file.write(left)
                if written is None:  # a full pipe that does not block
                    _wait_until_writable(self._file)
                else:
                    self._torn = left[written - 1] != ord("\n")
                    left = left[written:]
        except OSError as error:
            self.error = self.error or error
            self._failed_lines += bytes(left).count(b"\n")


def _wait_until_writable(file: FileIO) -> None:
    waiter = select.poll()  # select.select knows the first 1024 files only
    waiter.register(file, select.POLLOUT)
    waiter.poll()

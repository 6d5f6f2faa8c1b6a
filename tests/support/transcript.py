"""What was said between caller, gateway and replicas, in order, to be compared whole and shown as a diff."""

import difflib
from dataclasses import dataclass, field
from textwrap import dedent

LONGEST_SHOWN = 160


def shown(data: bytes) -> str:
    """Bytes for a person: escaped, the middle left out if they are many."""
    text = repr(bytes(data))[2:-1]
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[: LONGEST_SHOWN // 2]} ... {text[-LONGEST_SHOWN // 2 :]} ({len(data)} bytes)"


@dataclass
class Transcript:
    """Lines such as `caller: POST /v1/chat/completions`, `r1: reset`, `caller got: 200 {"id": ...}`."""

    lines: list[str] = field(default_factory=list)

    def note(self, who: str, what: str) -> None:
        """Add a line."""
        self.lines.append(f"{who}: {what}")

    def assert_is(self, expected: str) -> None:
        """The whole conversation is `expected` (indentation and empty lines do not matter); a diff if it is not."""
        wanted = [line.strip() for line in dedent(expected).strip().splitlines() if line.strip()]
        if wanted != self.lines:
            diff = difflib.unified_diff(wanted, self.lines, "expected", "said", lineterm="", n=100)
            raise AssertionError("the conversation went another way:\n" + "\n".join(diff))


def assert_same_bytes(actual: bytes, expected: bytes, what: str = "body") -> None:
    """`actual` is `expected`, byte for byte; otherwise shows where they part, and both lengths."""
    if bytes(actual) == bytes(expected):
        return
    shorter = min(len(actual), len(expected))
    at = next((index for index in range(shorter) if actual[index] != expected[index]), shorter)
    start = max(0, at - 60)
    raise AssertionError(
        f"{what} differs at byte {at} of {len(expected)} (got {len(actual)}):\n"
        f"  expected ...{shown(expected[start : at + 100])}\n"
        f"  got      ...{shown(actual[start : at + 100])}"
    )

"""Says once when something turns bad and once when it is good again, however often it is seen in between."""

import structlog

log = structlog.get_logger()


class Conditions:
    """What is bad now, by replica and subject."""

    def __init__(self) -> None:
        self._bad: set[tuple[str, str]] = set()

    def report(self, replica: str, subject: str, problem: str | None) -> None:
        """`subject` of `replica` is bad, or good (`problem` None). Logged only if that is a change."""
        key = (replica, subject)
        if problem is None and key in self._bad:
            self._bad.discard(key)
            log.info(f"{subject} usable again", replica=replica)
        elif problem is not None and key not in self._bad:
            self._bad.add(key)
            log.warning(f"{subject} not usable", replica=replica, problem=problem)

    def forget_all_but(self, replicas: set[str]) -> None:
        """Only `replicas` are in the fleet now."""
        self._bad = {key for key in self._bad if key[0] in replicas}

"""The gateway's own log: short lines on standard error, readable without colour."""

import logging
import sys

import structlog


def configure_log(level: str) -> None:
    """Show what is at least `level` (`debug`, `info`, `warning`, `error`)."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Looked up anew: a stream that was put in standard error's place for a while may be closed by now.
        logger_factory=lambda *names: structlog.WriteLogger(sys.stderr),
    )

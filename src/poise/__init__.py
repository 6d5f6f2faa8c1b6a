"""Poise: an inference gateway that sends each request to the replica with real headroom."""

__version__ = "0.1.0"

"""What the kernel holds of a connection that the event loop has not looked at yet."""

import asyncio
import select


def has_arrived(transport: asyncio.Transport, event: int) -> bool:
    """Whether bytes (`select.POLLIN`) or an end (`select.POLLRDHUP`) have come."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), event)
    return bool(poll.poll(0))

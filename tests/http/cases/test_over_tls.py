"""Reported cases that concern connections, once more over TLS on both sides."""

from collections.abc import Awaitable, Callable

import pytest
import test_o02_split_characters
import test_o05_no_glued_retries
import test_o09_stale_connections
import test_o11_large_requests

from support.certificates import tls_everywhere

SCENARIOS = (
    test_o02_split_characters.test_two_writes_cut_at_every_position,
    test_o05_no_glued_retries.test_a_refused_connection,
    test_o05_no_glued_retries.test_a_body_of_many_reads_is_sent_whole_to_the_second_replica_too,
    test_o09_stale_connections.test_an_answer_that_announces_the_end_of_the_connection_is_not_kept,
    test_o09_stale_connections.test_a_connection_with_unasked_bytes_on_it_is_not_used_again,
    test_o09_stale_connections.test_connections_are_kept_and_used_again,
    test_o11_large_requests.test_a_caller_that_waits_for_leave_gets_it_at_once,
    test_o11_large_requests.test_an_answer_that_comes_before_the_body_was_read,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_same_over_tls(scenario: Callable[[], Awaitable[None]]) -> None:
    with tls_everywhere():
        await scenario()

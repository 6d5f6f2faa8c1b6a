"""Recent decisions as `/api/decisions` shows them: every candidate as it was, who was chosen, and what came of it."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from poise.core.decision import Send, Wait
from poise.proxy.trail import Candidate, Step, Trail, Trails
from poise.routing.rendezvous import rendezvous

USUAL, MOST = 50, 1000
"""Decisions on one page, if nothing is said and at most."""


def decisions(
    trails: Trails, *, replica: str | None = None, request_id: str | None = None, limit: int = USUAL
) -> Iterator[dict[str, Any]]:
    """The decisions that are kept, the newest first: those that chose `replica`, those about `request_id`, or all.

    Each is made when it is asked for: that of 64 candidates takes 0.1 ms, in the loop that forwards streams.
    """
    found = ((trail, number) for trail in list(trails.recent)[::-1] for number in range(len(trail.steps))[::-1])
    wanted = (
        _decision(trail, number)
        for trail, number in found
        if (request_id is None or trail.request_id.decode() == request_id)
        and (replica is None or _name(trail.steps[number]) == replica)
    )
    return islice(wanted, limit)


def _decision(trail: Trail, number: int) -> dict[str, Any]:
    place = {"number": number + 1, "decisions": len(trail.steps)}
    return _request(trail) | _step(trail.steps[number], trail) | place


def _name(step: Step) -> str | None:
    return None if step.replica is None else step.replica.name


def _request(trail: Trail) -> dict[str, Any]:
    """What all decisions about one request share. No prompt, no key."""
    facts, line = trail.facts, trail.line
    return {
        "request_id": trail.request_id.decode(),
        "at": trail.at,
        "model": facts.model,
        "stream": facts.stream,
        "session": None if facts.session is None else f"{facts.session:016x}",
        "prompt_tokens_estimate": facts.prompt_tokens,
        "output_tokens_limit": facts.output_tokens,
        "request": None
        if line is None
        else {
            "outcome": line.outcome,
            "status": line.status,
            "error": line.error,
            "attempts": line.attempts,
            "first_output_s": line.first_output_s,
            "duration_s": line.duration_s,
            "prompt_tokens": line.prompt_tokens,
            "cached_tokens": line.cached_tokens,
            "output_tokens": line.output_tokens,
        },
    }


def _step(step: Step, trail: Trail) -> dict[str, Any]:
    decision = step.decision
    scores = dict(decision.terms) if isinstance(decision, Send) else {}
    session = trail.facts.session
    replicas = [one.replica for one in step.candidates]
    names = {replica.slot: replica.name for replica in replicas}
    return {
        "after_s": step.at_s - trail.started_s,
        "took_s": step.took_s,
        "decision": "send" if isinstance(decision, Send) else "wait" if isinstance(decision, Wait) else "refuse",
        "replica": _name(step),
        "reason": decision.reason,
        "home": None if session is None or not replicas else names[rendezvous(session, replicas).slot],
        "predicted_first_output_s": None,
        "first_output_s": None if step.first_output_s is None else step.first_output_s - step.at_s,
        "outcome": step.outcome,
        "error": step.error,
        "candidates": [_candidate(one, scores, step) for one in step.candidates],
    }


def _candidate(one: Candidate, scores: dict[int, float], step: Step) -> dict[str, Any]:
    return {
        "replica": one.replica.name,
        "available": one.obstacle is None,
        "obstacle": one.obstacle,
        "excluded": one.replica.slot in step.excluded,
        "score": scores.get(one.replica.slot),
        "kv": one.kv,
        "queue": one.queue,
        "gpu": one.gpu,
        "request_time_s": one.request_time_s,
        "in_flight": one.in_flight,
        "prefill_tokens": one.prefill_tokens,
    }

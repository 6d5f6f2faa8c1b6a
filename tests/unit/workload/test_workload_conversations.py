"""Conversations are as long and as mixed as the mix says, and depend on the seed alone."""

from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean

import pytest

from poise.workload.conversations import Conversation, ConversationMix, conversations

MIX = ConversationMix(document_tokens=2000, long_share=0.25, turns_mean=4.0)


def drawn(count: int, mix: ConversationMix = MIX, seed: int = 1) -> list[Conversation]:
    return list(islice(conversations(mix, Random(seed)), count))


def tokens(text: str) -> float:
    return (len(text) + 1) / 4


def test_means_are_those_of_the_mix() -> None:
    many = drawn(1500)
    turns = [turn for conversation in many for turn in conversation.turns]
    later = [turn for conversation in many for turn in conversation.turns[1:]]
    assert fmean(len(conversation.turns) for conversation in many) == pytest.approx(4.0, rel=0.08)
    assert fmean(turn.output_tokens for turn in turns) == pytest.approx(MIX.output_tokens_mean, rel=0.08)
    assert fmean(tokens(turn.text) for turn in later) == pytest.approx(MIX.prompt_tokens_mean, rel=0.08)
    assert fmean(turn.pause_s for turn in later) == pytest.approx(MIX.pause_s_mean, rel=0.08)
    long = [conversation for conversation in many if tokens(conversation.turns[0].text) > 2000]
    assert len(long) / len(many) == pytest.approx(0.25, abs=0.04)


def test_a_conversation_begins_at_once_and_every_turn_says_and_wants_something() -> None:
    for conversation in drawn(200):
        assert conversation.turns[0].pause_s == 0
        assert all(turn.text and turn.output_tokens >= 1 for turn in conversation.turns)


def test_users_differ_and_share_a_few_system_prompts() -> None:
    many = drawn(200)
    assert len({conversation.session for conversation in many}) == 200
    assert len({conversation.system for conversation in many}) == MIX.systems
    assert {tokens(conversation.system) for conversation in many} == {MIX.system_tokens}


def test_the_same_seed_gives_the_same_conversations() -> None:
    assert drawn(5) == drawn(5) != drawn(5, seed=2)


def test_one_turn_each_is_a_mix_too() -> None:
    assert {len(conversation.turns) for conversation in drawn(50, replace(MIX, turns_mean=1.0))} == {1}

"""Names, aliases and settings of policies, and what is said of wrong ones."""

from random import Random

import pytest

from poise.core.decision import Send
from poise.core.errors import ConfigError
from poise.core.request import RequestFacts
from poise.routing.load_score import LoadWeights
from poise.routing.policies.soft_affinity import SoftAffinitySettings
from poise.routing.registry import ALIASES, DEFAULT_POLICY, POLICIES, make_policy, policy_name
from poise.routing.settings import read_settings

from support.fleets import Load, fleet_of  # isort: skip


def said(name: str, settings: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        make_policy(name, settings or {}, Random(0))
    assert "hint: " in str(caught.value)
    return str(caught.value)


def test_the_table_holds_the_policies_of_the_documentation() -> None:
    assert set(POLICIES) == {
        "round_robin", "random", "least_requests", "power_of_two", "load_score", "soft_affinity",
    }  # fmt: skip
    assert DEFAULT_POLICY in POLICIES
    assert all(entry.summary and "\n" not in entry.summary for entry in POLICIES.values())


def test_aliases_lead_to_policies_and_hide_none() -> None:
    assert set(ALIASES.values()) <= set(POLICIES)
    assert not set(ALIASES) & set(POLICIES)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("round-robin", "round_robin"), ("Soft_Affinity", "soft_affinity"), ("p2c", "power_of_two"),
     ("least-conn", "least_requests"), ("a.b:C", "a.b:C")],
)  # fmt: skip
def test_names_as_people_type_them(typed: str, meant: str) -> None:
    assert policy_name(typed) == meant


@pytest.mark.parametrize(
    ("typed", "nearest"), [("soft_afinity", "soft_affinity"), ("randon", "random"), ("leastconn", "least_requests")]
)
def test_an_unknown_name_lists_the_known_and_hints_at_the_nearest(typed: str, nearest: str) -> None:
    message = said(typed)
    assert f"policy {typed!r} is unknown" in message
    assert all(name in message for name in POLICIES)
    assert f"did you mean {nearest}?" in message


def test_a_name_near_to_nothing_gets_no_guess() -> None:
    assert "did you mean" not in said("zzzzzz")


@pytest.mark.parametrize("name", POLICIES)
def test_an_unknown_setting_is_refused_by_every_policy(name: str) -> None:
    assert "has no setting 'afinity_threshold'" in said(name, {"afinity_threshold": 0.5})


def test_an_unknown_setting_names_the_nearest() -> None:
    assert "did you mean 'affinity_threshold'?" in said("soft_affinity", {"afinity_threshold": 0.5})
    assert "policy soft_affinity.weights has no setting 'qeue'" in said("soft_affinity", {"weights": {"qeue": 1}})


@pytest.mark.parametrize(
    "settings",
    [{"affinity_threshold": "high"}, {"affinity_threshold": True}, {"affinity_threshold": None},
     {"affinity_threshold": -1}, {"weights": 3}, {"weights": {"kv": "x"}}, {"weights": {"kv": -1}}, {1: 2}],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_refused(settings: dict[str, object]) -> None:
    said("soft_affinity", settings)


def test_settings_reach_the_policy_and_the_rest_keep_their_defaults() -> None:
    given = {"affinity_threshold": 1, "weights": {"kv": 0.9}}
    assert read_settings(SoftAffinitySettings, given, "policy") == SoftAffinitySettings(1.0, LoadWeights(kv=0.9))
    away = make_policy("soft_affinity", {"affinity_threshold": 0}, Random(0))
    decision = away.choose(RequestFacts(session=1), fleet_of([Load(kv=0.1)] * 2).pool(None), 0.0, ())
    assert isinstance(decision, Send)
    assert decision.reason == "spill"

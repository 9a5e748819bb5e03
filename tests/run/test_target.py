"""Objects that yamls name: what their classes may refuse, or lack."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from zbench.run.target import expect, from_yaml, make_part


class Mine:
    """A part of a third party."""

    def __init__(self, depth: int, cost: Any = None) -> None:
        if depth > 3:
            raise RuntimeError("too deep")
        if depth < 0:
            raise ValueError("system.depth is below 0")
        self.depth, self.plan = depth, 3


def made(**keys: Any) -> Any:
    return make_part(
        from_yaml, OmegaConf.create({"system": {"_target_": "tests.run.test_target.Mine", **keys}}), "system", cost=7
    )


def test_keys_and_arguments_reach_the_class() -> None:
    assert made(depth=2).depth == 2


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"depth": 4},
            r"^tests\.run\.test_target.Mine failed with RuntimeError: too deep \(.*test_target.py line 16\); HYDRA",
        ),
        (
            {"depth": "a"},
            r"^tests\.run\.test_target.Mine failed with TypeError: '>' not supported .* \(.*test_target.py line 15\)",
        ),
        ({"depth": -1}, "^system.depth is below 0$"),
        ({"depth": "???"}, r"^system.depth has to be given, as in system.depth=\.\.\.$"),
        (
            {"depth": 1, "width": 2},
            r"^tests\.run\.test_target.Mine is called with the keys of its yaml and cost, and does not .* 'width'$",
        ),
        ({"depth": 1, "cost": 5}, r"^system.cost is given by the run; set the keys of cluster and model$"),
        ({"depth": 1, "_recursive_": 5}, r"^system cannot be made from its yaml: .*_recursive_ flag must be a bool"),
        ({}, r"does not take that: .* missing 1 required positional argument: 'depth'$"),
    ],
)
def test_a_mistake_is_one_sentence(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        made(**keys)


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("systems.zeppelin.Zeppelin", "zbench.systems.zeppelin.planner.Zeppelin"),
        ("zbench.systems.nodewise.Nodewise", "zbench.systems.nodewise.planner.Nodewise"),
        ("zbench.simulate.Simulated", "zbench.simulator.estimate.step.StepEstimate"),
    ],
)
def test_an_earlier_version_s_name_is_answered_with_today_s(old: str, today: str) -> None:
    config = OmegaConf.create({"system": {"_target_": old}})
    with pytest.raises(ValueError, match=f"^system._target_ is {old}; that is {today} now$"):
        make_part(from_yaml, config, "system")
    inner = OmegaConf.create(
        {"workload": {"_target_": "tests.run.test_target.Mine", "parts": [{"depth": {"_target_": old}}]}}
    )
    with pytest.raises(ValueError, match=rf"^workload.parts\[0\].depth._target_ is {old}; that is {today} now$"):
        make_part(from_yaml, inner, "workload")


@pytest.mark.parametrize(("key", "told"), [("seed", "seed=4"), ("tokens", "tokens_per_gpu, which times the number")])
def test_what_the_run_gives_is_not_set_in_a_yaml(key: str, told: str) -> None:
    config = OmegaConf.create({"workload": {"_target_": "tests.run.test_target.Mine", key: 4}})
    with pytest.raises(ValueError, match=rf"^workload.{key} is given by the run; set {told}"):
        make_part(from_yaml, config, "workload", seed=0, tokens=64)


def test_a_method_has_to_be_one() -> None:
    with pytest.raises(
        ValueError, match=r"^system: Mine has no batch \(zbench.interfaces.protocols says what a system needs\)$"
    ):
        expect("system", made(depth=1), "batch")
    with pytest.raises(ValueError, match=r"^system: Mine.plan is no method"):
        expect("system", made(depth=1), "plan")
    expect("system", made(depth=1), "depth", is_method=False)

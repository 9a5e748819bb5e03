"""Plans that are alike have one digest, and others have others."""

from dataclasses import fields

import numpy as np

from tests.helpers.steps import plan_of
from zbench.plans.alike import plan_digest
from zbench.plans.columns import Lists


def test_sequences_and_notes_make_no_difference() -> None:
    plan = plan_of([7, 5], 2, 4)
    assert plan_digest(plan) == plan_digest(plan_of([7, 5], 2, 4, first=3).with_(notes={"gap": 0.5}))


def test_every_other_field_makes_a_difference() -> None:
    plan = plan_of([7, 5], 2, 4)
    other = plan_of([5, 7], 2, 8, "keep")
    changed = {field.name: getattr(other, field.name) for field in fields(plan)}
    changed |= {"num_ranks": 3, "padding": np.array([0, 1]), "attention": "deepspeed"}
    changed |= {"lists": Lists.singletons(3), "lanes": Lists.singletons(1)}
    changed |= {"serial_legs": True, "in_rounds": True, "until_sent": True, "pipelines": "two", "mask": "a window"}
    apart = {name for name, value in changed.items() if plan_digest(plan.with_(**{name: value})) != plan_digest(plan)}
    assert apart == changed.keys() - {"sequences", "notes"}

"""A planner that takes its time, in a module of little weight, as the planner's process imports it by itself."""

from time import sleep

import zbench
from examples.planned_ahead import plan_nodewise

PLANNING, TRAINING = 0.15, 0.1  # seconds at least of a plan, and of a step


def plan_slowly(lengths: list[int]) -> zbench.StepPlans:
    sleep(PLANNING)
    return plan_nodewise(lengths)

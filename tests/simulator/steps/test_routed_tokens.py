"""Tokens of experts on the clock: matmuls, bytes and memory are of those that go to a slice of the experts."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from tests.helpers.steps import EXPERTS, plan_of, plan_of_blocks
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.curve import Curve
from zbench.describe.expert_schedule import DRAWN, TOKEN_CHOICE
from zbench.planned.step import StepPlans
from zbench.plans.plan import Plan
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes

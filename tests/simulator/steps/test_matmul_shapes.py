"""Matmuls of whole steps have the rate of their shape: what is cut by columns, by inner size, and by tokens."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.matmul import matmul_seconds
from zbench.planned.step import StepPlans
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes

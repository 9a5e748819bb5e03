"""Tests of zbench.simulator.steps.trains."""

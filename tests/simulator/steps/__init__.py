"""Tests of zbench.simulator.steps."""

"""Tests of zbench.simulator.steps.dataflow."""

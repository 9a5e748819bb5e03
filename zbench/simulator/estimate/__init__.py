"""Planners' estimate of a step: attention played layer by layer on the clock, all else added up beside it.

Planners ask it tens of times a batch, as a whole step (zbench.simulator.steps) takes three to six times as long. A run
is told by the whole step.
"""

"""Planners' estimate of a step: attention played layer by layer on the clock, all else added up beside it.

Planners ask it tens of times a batch, in a tenth of the time that a whole step (zbench.simulator.steps) takes. A run is
told by the whole step.
"""

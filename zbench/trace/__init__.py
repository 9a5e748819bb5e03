"""One simulated step as a Chrome trace, for Perfetto or chrome://tracing.

step: all events of a step, and its file. ranks, stages: the events of ranks that hold all layers, and of groups that
hold a part each. tracks: what is drawn where. file: how any trace, a measured one too, is written and found again.
"""

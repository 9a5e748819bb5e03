"""One simulated step as a Chrome trace, for Perfetto or chrome://tracing.

whole_step: the events of a step. part: one that some of the GPUs do, in a trace of all. named, words: what they are
called. channels: which channel of a link a message is drawn on. tracks: what is drawn where. file: how any trace, a
measured one too, is written and found again.
"""

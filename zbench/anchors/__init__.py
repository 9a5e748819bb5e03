"""Anchors: what others have measured, beside what this project's own plans, clock and costs predict. Pure: no torch.

A group of anchors is a file: collectives (flexsp, nccl), attention on several GPUs (attention, ring_flash_attention),
whole training steps (training, long_context, steps). Published numbers are data files with their source, each row
marked known or blind: known if somebody looked at it when a constant or an assumption was chosen (docs/cost.md).
A user's own rows of measured attention (measured) are predicted as the published ones are.
"""

"""Hydraulis: pipelines of different (tp, pp) side by side, chosen for every batch."""

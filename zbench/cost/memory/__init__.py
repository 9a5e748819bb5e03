"""Bytes that each rank has at its fullest: what planners reckon with, moment by moment (docs/memory/planners.md)."""

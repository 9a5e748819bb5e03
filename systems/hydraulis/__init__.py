"""Hydraulis."""

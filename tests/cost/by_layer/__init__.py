"""Tests of the search for strategies by layer."""

"""Tests of generation by Seesaw on processes."""

"""Rollouts: a policy generates on one layout and is trained on another, and its weights go between both."""

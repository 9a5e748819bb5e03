"""Contracts: what the engines of training frameworks can run, and whether a schedule keeps to it."""

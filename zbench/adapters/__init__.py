"""Adapters: zbench's planner inside other training frameworks (docs/adapters.md).

A framework's package is imported when its adapter is used; planning itself needs neither torch nor a GPU. Every rank
plans for itself: what is planned is a function of lengths, cluster and model alone, so that all ranks have the same.
"""

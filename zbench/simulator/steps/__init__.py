"""Plays whole steps on a described cluster's clock, and accounts for what they hold in memory."""

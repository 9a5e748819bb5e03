"""Weights of a policy on processes: trained with one layout, generated with in another, and where they lie meanwhile."""

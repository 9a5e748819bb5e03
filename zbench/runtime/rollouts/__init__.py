"""Weights of a policy on processes: trained with in one layout, generated with in another, and where they lie."""

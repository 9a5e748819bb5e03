"""The cost model: seconds, bytes and memory of operations on a described cluster, and the bound that no plan can
beat."""

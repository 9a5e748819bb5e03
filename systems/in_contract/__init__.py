"""A planner inside the contracts of frameworks (zbench.contracts), by the cost model and the clock."""

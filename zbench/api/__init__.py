"""zbench as a library, and the commands of its own words: plan, simulate and those that lead to other commands."""

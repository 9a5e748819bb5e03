"""The job of ranks: what they are told before their first step, what the executor accepts, and what a rank needs. No
torch."""

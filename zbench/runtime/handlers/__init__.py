"""Handlers of a step's operations in torch: computes, messages, and the store of cells they work on."""

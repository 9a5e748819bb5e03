"""Parts that several systems share: packing, balancing, grids of ranks, rounds of messages, micro-batches that fit
memory."""

"""FlexSP: Ulysses groups of different sizes side by side, chosen for every batch."""

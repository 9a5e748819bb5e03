"""What a run is about: batches, models, clusters and their links, worlds, quantities with units. Imports numpy only."""

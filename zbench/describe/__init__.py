"""Descriptions of a run's subject: batches, models, clusters and their links, worlds, quantities with units. Imports
numpy only."""

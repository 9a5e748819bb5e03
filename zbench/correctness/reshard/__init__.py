"""Weights brought from training to generation by processes, and where they have to be by arithmetic of their own."""

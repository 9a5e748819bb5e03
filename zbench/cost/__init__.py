"""What operations cost on a described cluster: seconds, bytes, memory, and the bound that no plan can beat."""

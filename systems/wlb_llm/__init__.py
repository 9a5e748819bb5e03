"""WLB-LLM."""

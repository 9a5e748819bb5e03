"""WLB-LLM: packs of equal work, each cut over its group per sequence or per document."""

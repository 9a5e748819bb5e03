"""Steps executed on numbers: an interpreter of their columns that shares no code with the proof."""

"""The functions of zbench as a library, and the words of its command: plan, simulate, and others that lead on."""

"""The parts that commands share: options, signals, sentences for mistakes, tables, progress."""

"""Writes numbers with units, as zbench.describe.units.parse reads them. Pure."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))


def quantity(value: float, unit: str) -> str:
    """Writes three digits of a value above 0 with its unit: 12.3 GFLOP/s, 870 MB/s, 1.5 us, 250 ns."""
    rounded = float(f"{value:.3g}")
    factor, prefix = next(((f, p) for f, p in _PREFIXES if rounded >= f), (1e-9, "n"))
    return f"{rounded / factor:.3g} {prefix}{unit}"


def quantities(values: dict[int, float], unit: str) -> str:
    """Writes the value of every size: "256: 12.3 GFLOP/s, 512: 14 GFLOP/s"."""
    return ", ".join(f"{size}: {quantity(value, unit)}" for size, value in values.items())

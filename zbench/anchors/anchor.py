"""One published number beside its prediction, and the files the published numbers are in. Pure: no torch."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from zbench.describe.cluster import Cluster

Row = dict[str, str]
# (name, num_nodes, device): a preset of conf/cluster, resized or with another device.
GetCluster = Callable[..., Cluster]


@dataclass(frozen=True, slots=True)
class Anchor:
    """An anchor is a measured number beside its prediction.

    anchor: the group. case: what was measured, with its unit. source: where it was published.
    known: somebody looked at this number when a constant or an assumption was chosen; otherwise it is blind.
    family: cases of one family should come out in the measured order; "" if it belongs to none.
    method: what the cases of a family are of; several of one method are repeats. "" where each case is of its own.
    """

    anchor: str
    case: str
    measured: float
    predicted: float
    source: str
    known: bool
    family: str = ""
    method: str = ""

    @property
    def error(self) -> float:
        """The error is relative: positive where the prediction is above the measurement."""
        return self.predicted / self.measured - 1


def published_rows(name: str) -> list[Row]:
    """Returns the rows of data/NAME.csv, by column name."""
    text = files("zbench.anchors").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def is_known(row: Row) -> bool:
    """Returns whether a published row is marked as one that constants were chosen with."""
    assert row["known"] in ("yes", "no"), row
    return row["known"] == "yes"

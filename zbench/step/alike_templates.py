"""Templates of micro-batches that are alike, which have what is equal in common."""

from dataclasses import replace

import numpy as np

from zbench.step.operations import COLUMN_NAMES
from zbench.step.template import ITEM_COLUMNS, Items, Template


def with_columns_of(one: Template, like: Template) -> Template:
    """Returns a template with the operations, and columns of its contract, of another one where these are equal, so
    that who looks at them finds that they are the same. Counts of contributions mostly differ."""
    same = all(np.array_equal(getattr(one.operations, name), getattr(like.operations, name)) for name in COLUMN_NAMES)
    operations = like.operations if same else one.operations
    needs, leaves = (_columns_of(*both) for both in ((one.needs, like.needs), (one.leaves, like.leaves)))
    return replace(one, operations=operations, needs=needs, leaves=leaves)


def _columns_of(one: Items, like: Items) -> Items:
    both = ((getattr(one, name), getattr(like, name)) for name in ITEM_COLUMNS)
    return Items(*(known if np.array_equal(own, known) else own for own, known in both))

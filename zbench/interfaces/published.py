"""The values that keys of a system have in what its authors published: a key a cause.

A system that has such values has them as its class's `PUBLISHED`. On the command line each of these keys takes the word
`published`, and `variant=published` sets all of them but those that are given beside it (zbench.run.request).
"""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

PUBLISHED = "published"
VARIANT = "variant"  # the key of a run by which its system's keys are as they were published


class PublishedValue(NamedTuple):
    """The value that a key has in what was published, and where that is said."""

    value: Any
    source: str


Published = Mapping[str, PublishedValue]  # by key


def published_of(kind: object) -> Published:
    """Returns the published values of a system's class; none of one without any."""
    found = getattr(kind, "PUBLISHED", None)
    return found if isinstance(found, Mapping) else {}


def check_variant(variant: object) -> None:
    """Refuses a variant that is not.

    Raises:
        ValueError: it is neither `published` nor None.
    """
    if variant not in (None, PUBLISHED):
        raise ValueError(f"{VARIANT} is {variant!r}; it takes {PUBLISHED} or null")


def unpublished(system: str) -> str:
    """Returns why a system without published values has no such variant."""
    return f"{VARIANT} is {PUBLISHED}; {system} has no published values (docs/systems/index.md has who has)"


def published_keys(
    keys: Mapping[str, Any], published: Published, given: Container[str] | None = None
) -> dict[str, Any]:
    """Returns the values that a system's keys are to have: those for the word `published`, and for a variant all that
    are not `given`; None: of no variant."""
    return {
        key: one.value
        for key, one in published.items()
        if keys.get(key) == PUBLISHED or (given is not None and key not in given)
    }


def told_changes(changes: Mapping[str, Any], keys: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Returns what is changed of a system's yaml, as tables name it: where all keys with published values are as
    published, `variant=published` in place of those that are changed, unless naming these is shorter. keys: all of the
    system."""
    ours = " ".join(f"{key}={value}" for key, value in changes.items() if key in published)
    if len(ours) <= len(f"{VARIANT}={PUBLISHED}") or any(keys.get(key) != one.value for key, one in published.items()):
        return dict(changes)
    return {"variant": PUBLISHED, **{key: value for key, value in changes.items() if key not in published}}

"""How many examples property tests draw whose single one is expensive."""

from hypothesis import settings

USUAL = 20  # examples of a test that says nothing, in the profile `ci`


def examples(count: int) -> settings:
    """Returns settings of a test that draws `count` examples in the profile `ci`, and in another one as many times more
    as that draws of tests that say nothing."""
    return settings(max_examples=count * settings.default.max_examples // USUAL)

"""Mixtures: shares of documents and of tokens, and the components that are refused."""

from functools import partial

import numpy as np
import pytest

from zbench.workloads.fixed import Fixed
from zbench.workloads.histogram import Histogram
from zbench.workloads.longtail import Longtail
from zbench.workloads.mixture import Mixture

SHORT = partial(Fixed, length=100)
LONG = partial(Fixed, length=6400)
BODY = partial(Longtail, mu=6.1, sigma=1.27, tail_share=0.05, tail_start=4096, alpha=1.5, max_length=131072)


def make(by: str, short: object, long: object, weight: float = 0.75, **limits: object) -> Mixture:
    components = {"short": {"weight": 1 - weight, "lengths": short}, "long": {"weight": weight, "lengths": long}}
    return Mixture(seed=0, tokens=1 << 28, components=components, weights_of=by, **limits)  # type: ignore[arg-type]


def test_weights_by_documents() -> None:
    lengths = make("documents", SHORT, LONG).batch(0).lengths
    assert (lengths == 6400).mean() == pytest.approx(0.75, abs=0.005)


def test_weights_by_tokens() -> None:
    lengths = make("tokens", SHORT, LONG).batch(0).lengths
    assert lengths[lengths == 6400].sum() / lengths.sum() == pytest.approx(0.75, abs=0.005)


@pytest.mark.parametrize("over_limit", ["cut", "drop"])
def test_token_weights_hold_under_the_context_limit(over_limit: str) -> None:
    # Under a limit of 8192 the tail of the body holds far fewer tokens: the shares must account for it.
    spike = partial(Fixed, length=8192)
    mixture = make("tokens", BODY, spike, weight=0.5, context_limit=8192, over_limit=over_limit)
    body = make("tokens", BODY, BODY, context_limit=8192, over_limit=over_limit)
    rng = np.random.default_rng(0)
    kept = body.draw(rng, 400_000)
    kept = np.minimum(kept, 8192) if over_limit == "cut" else kept[kept <= 8192]
    at_limit = kept[kept == 8192].sum() / kept.sum()
    lengths = mixture.batch(0).lengths
    share = lengths[lengths == 8192].sum() / lengths.sum()
    assert share == pytest.approx(0.5 + 0.5 * at_limit, abs=0.005)


def test_weights_are_relative() -> None:
    one = Mixture(seed=0, tokens=9999, components={"a": {"weight": 3, "lengths": SHORT}})
    assert one.batch(0).lengths.tolist() == [100] * 99 + [99]


def test_a_mixture_can_hold_a_mixture_and_its_cdf_is_weighted() -> None:
    inner = partial(Mixture, components={"a": {"weight": 1, "lengths": SHORT}})
    outer = make("documents", inner, LONG)
    assert outer.cdf(np.array([99, 100, 6399, 6400])) == pytest.approx([0, 0.25, 0.25, 1])


def test_the_mean_behind_token_weights_is_exact() -> None:
    spikes = partial(Histogram, bins=[[10, 11, 0.5], [30, 31, 0.5]])
    mixture = make("tokens", spikes, partial(Fixed, length=40), weight=0.5)
    # Means 20 and 40: equal token shares are 2 documents to 1.
    assert mixture.cdf(np.array([30])) == pytest.approx([2 / 3])


@pytest.mark.parametrize(
    ("components", "said"),
    [
        ({}, r"workload\.components is \{\}; it must be at least one"),
        (None, r"workload\.components is None"),
        ({"a": 5}, r"workload\.components\.a has 5; it must have exactly the fields weight and lengths"),
        ({"a": {"weight": 1}}, r"workload\.components\.a has \['weight'\]"),
        ({"a": {"weight": 0, "lengths": SHORT}}, r"workload\.components\.a\.weight is 0; .* above 0"),
        ({"a": {"weight": "x", "lengths": SHORT}}, r"workload\.components\.a\.weight is 'x'"),
        ({"a": {"weight": 1, "lengths": {}}}, r"workload\.components\.a\.lengths is \{\}; .* _partial_: true"),
    ],
)
def test_bad_components_are_named(components: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Mixture(seed=0, tokens=10, components=components)  # type: ignore[arg-type]


def test_bad_by_and_a_component_that_is_always_dropped() -> None:
    with pytest.raises(ValueError, match=r"workload\.weights_of is 'bytes'; it must be one of documents, tokens"):
        make("bytes", SHORT, LONG)
    with pytest.raises(ValueError, match=r"workload\.context_limit is 1000; .*workload\.components\.long"):
        make("tokens", SHORT, LONG, context_limit=1000, over_limit="drop")

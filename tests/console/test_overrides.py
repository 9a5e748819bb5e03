"""Settings that hydra refuses or misreads: the sentence, and that what it advises is read as meant."""

import shlex
import subprocess

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from hypothesis import given
from hypothesis import strategies as st

from zbench import CONF
from zbench.console.overrides import added, as_typed, check_choices, of_swept_groups, quoted, several, unreadable
from zbench.describe.strategies.strategy_keys import MODEL_KEYS

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\\$`"), min_size=1, max_size=20)


@given(TEXT)
def test_what_is_advised_is_one_word_of_a_shell_and_one_text_to_hydra(value: str) -> None:
    if "'" in value and '"' in value:
        return  # two kinds of quotes in a file's name
    (word,) = shlex.split(quoted("out", value))
    (override,) = OverridesParser.create().parse_overrides([word])
    assert override.key_or_group == "out"
    assert override.value() == value


def test_a_shell_leaves_what_is_advised_as_it_is() -> None:
    """Dollars and backquotes, which shlex does not know of, stand for themselves."""
    said = subprocess.run(["sh", "-c", f"printf %s {quoted('out', '$HOME `id` (1)')}"], capture_output=True, text=True)
    assert said.stdout == "out='$HOME `id` (1)'"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("out=runs(1).jsonl", "has to be quoted, as in \"out='runs(1).jsonl'\""),
        ("workload.path=a=b.txt", "has to be quoted, as in \"workload.path='a=b.txt'\""),
        ("out=runs{1}.jsonl", "has to be quoted, as in \"out='runs{1}.jsonl'\""),
        ("out=a#b", "has to be quoted"),
        ("out=foo(1,2)", "has to be quoted"),
        ("out=it's.jsonl", 'a quote is not closed, or has to be quoted itself: "out=\\"it\'s.jsonl\\""'),
        ("out=[x.jsonl", "lists are written out=[a,b], and text with brackets as in \"out='[x.jsonl'\""),
        ("steps=1,", "several values are written as in -m steps=1,2"),
        ("steps", "settings are written key=value"),
        ("steps =3", "settings are written key=value"),
        ("+x", "settings are written key=value"),
        ("1x=3", "settings are written key=value"),
    ],
)
def test_what_the_grammar_refuses(override: str, told: str) -> None:
    with pytest.raises(OverrideParseException):
        OverridesParser.create().parse_overrides([override])
    sentence = unreadable(override)
    assert sentence.startswith(f"{override!r} cannot be read; ")
    assert told in sentence
    assert "\n" not in sentence


def test_several_values_without_m() -> None:
    assert several("system=ring,usp") == "system=ring,usp names several values; add -m to run each of them in turn"
    assert several("out=a,b.jsonl").endswith("or quote a value that has commas: \"out='a,b.jsonl'\"")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("system=[ring,zeppelin]", r"^system is \[ring,zeppelin\], a list; .* and -m system=ring,zeppelin runs"),
        ("cluster/device=[a, b]", r"^cluster/device is \[a, b\], a list; .* -m cluster/device=a,b runs"),
        ("+model=[tiny]", r"^model is \[tiny\], a list"),
        ("experiment=[ci,costs]", r"^experiment is \[ci,costs\], a list; it takes one name, as in experiment=ci$"),
        ("system={a:1}", r"^system is {a:1}; it takes the name of one of its choices \(see --help\)$"),
        ("experts=null", r"^experts is null; it takes the name of one of its choices \(see --help\)$"),
        ("+model=Null", r"^model is Null; it takes"),
    ],
)
def test_a_list_or_keys_or_null_are_no_choice_of_a_group(override: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_choices(["steps=3", override], ["system", "model", "cluster", "experiment", "experts"])


def test_lists_of_keys_are_left_alone() -> None:
    check_choices(["check=[exact,bytes]", "system.strategies=[1,2]", "system=ring"], ["system", "model"])


def test_a_key_of_a_group_that_is_swept_is_a_sweep_of_one_value() -> None:
    given = ["-m", "sync=co2,slowmo", "sync.steps=4", "sync.lr=0.5,1", "overlap.slices=2", "steps=8", "+sync.x=1"]
    given += ["system=ring,mesh", "system.name='a b'"]
    wanted = [*given[:2], "sync.steps=choice(4)", *given[3:]]
    assert of_swept_groups(given) == wanted
    (override,) = OverridesParser.create().parse_overrides(["sync.steps=choice(4)"])
    assert override.is_sweep_override()
    assert list(override.sweep_string_iterator()) == ["4"]
    assert of_swept_groups(["sync=co2", "sync.steps=4"]) == ["sync=co2", "sync.steps=4"]


def test_a_model_has_the_keys_of_any_other_whatever_its_yaml_says() -> None:
    """Each yaml of conf/model, with a key that dense ones leave out; a + before it, as it took, is as good."""
    experts = {"num_experts", "experts_per_token", "shared_experts", "dense_layers", "dense_ffn_hidden"}
    assert experts | {"gate", "router", "router_dim", "router_temperature"} <= MODEL_KEYS
    assert not MODEL_KEYS & {"name", "hidden", "mask", "sharding", "tensor_parallel", "offload"}
    words = ["model.num_experts=8", "+model.experts_per_token=2", "++model.gate=sigmoid", "model.router=linear"]
    given = [added(word) for word in words]
    assert given == [f"++{word.lstrip('+')}" for word in words]
    assert [as_typed(word) for word in given] == [word.lstrip("+") for word in words]
    for path in sorted((CONF / "model").glob("*.yaml")):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            model = compose("config", [f"model={path.stem}", *given]).model
        assert (model.num_experts, model.experts_per_token, model.gate) == (8, 2, "sigmoid")


@pytest.mark.parametrize("word", ["model.hidden=64", "model.gat=sigmoid", "model=tiny", "+model.mask=full", "seed=1"])
def test_other_settings_stay_as_they_are(word: str) -> None:
    assert added(word) == as_typed(word) == word

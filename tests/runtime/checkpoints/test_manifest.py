"""A manifest says whether a folder is as it was written. What is said of a whole checkpoint: test_folder."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.runtime.checkpoints.manifest import Changed, check, entries, open_manifest, sealed

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda key: key not in ("files", "sha256")), PLAIN))
def test_what_is_sealed_is_opened(meta: dict[str, object]) -> None:
    files = {"a": {"bytes": 1, "sha256": "x"}}
    assert open_manifest(sealed(meta, files)) == {**json.loads(json.dumps(meta)), "files": files}


def test_keys_and_tuples_that_json_changes_are_sealed_as_they_are_read() -> None:
    assert open_manifest(sealed({"sizes": {10: (1, 2), 9: 3}}, {})) == {"sizes": {"10": [1, 2], "9": 3}, "files": {}}


def test_no_byte_of_a_manifest_changes_unseen() -> None:
    text = sealed({"next_step": 10, "run": {"seed": 0}}, {"a": {"bytes": 1, "sha256": "0f"}})
    for at, letter in enumerate(text):
        changed = text[:at] + chr(ord(letter) ^ 1) + text[at + 1 :]
        with pytest.raises(ValueError):  # noqa: PT011 - Changed, or no JSON any more
            open_manifest(changed)


def test_a_folder_is_compared_with_all_its_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    files = entries(tmp_path, ["a", "b"])
    check(tmp_path, files, ())
    (tmp_path / "told.json").touch()
    check(tmp_path, files, ("told.json",))
    (tmp_path / "b").write_text("c")
    with pytest.raises(Changed, match="has b with other content"):
        check(tmp_path, files, ("told.json",))

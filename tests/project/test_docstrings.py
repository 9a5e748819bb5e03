"""Every public module, class and function says what it is in a first sentence that can be read by itself.

A name is public if neither it nor what it is in begins with an underscore. What needs no docstring of its own:
a method that a protocol or a base class of these packages documents; forward and backward of torch's functions and
kernels; and a property of a single statement. A function's sentence begins with a verb in the third person ("Returns",
"Lists"), a property's and a class's may be a noun with what it needs to be understood.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("zbench", "systems", "workloads")
PASSES = ("forward", "backward")  # a protocol or torch says what they are
# A sentence that begins so is the end of another one, or of the signature.
FRAGMENTS = frozenset(
    {
        "Of",
        "As",
        "That",
        "What",
        "Whether",
        "Which",
        "Where",
        "How",
        "Why",
        "Who",
        "Those",
        "With",
        "By",
        "From",
        "For",
        "After",
        "Before",
        "Until",
        "Per",
        "It",
        "Its",
        "Than",
        "Told",
        "Held",
        "Likewise",
        "None",
    }
)
OF_PROPERTIES = frozenset({"Whether"})  # "Whether all ranks are on this machine."
SENTENCE = re.compile(r"(.*?[.?!])(?=\s|$)", re.DOTALL)
# A capital, or a name in code: a package (torch.nn), a command (python -m), a file or a name with digits (cuDNN).
BEGINNING = re.compile(r"[A-Z`]|[a-z]\w*[A-Z_.0-9]|python -m |torch's |slime's |verl's |tracker=")
FIELDS = re.compile(r"[a-z_]\w*(, [a-z_]\w*)*: ")  # "size: bytes of an entry." says of a field what it is

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | Definition


def first_sentence(docstring: str) -> str:
    """Returns the first sentence in one line, "" where the first paragraph has none that ends."""
    found = SENTENCE.match(docstring.split("\n\n")[0])
    return " ".join(found[1].split()) if found else ""


def fault(docstring: str, is_property: bool = False, is_function: bool = False) -> str:
    """Returns what is wrong with the first sentence of a docstring, "" if nothing; a property is no function here."""
    sentence = first_sentence(docstring)
    if not sentence:
        return "does not begin with a sentence that ends in a full stop"
    if FIELDS.match(sentence):
        return "begins with a field, not with what has it"
    if not BEGINNING.match(sentence):
        return "begins neither with a capital nor with a name in code"
    word = sentence.split()[0].rstrip(",:;.")
    if (word in FRAGMENTS and not (is_property and word in OF_PROPERTIES)) or sentence.startswith("The same "):
        return f"begins with {word!r}, as the end of another sentence"
    if is_function and not word.endswith("s"):
        return f"begins with {word!r}, and not with a verb in the third person"
    return ""


def parts(tree: ast.Module) -> Iterator[tuple[str, Documented, ast.ClassDef | None]]:
    """Yields the public parts of a module, with their dotted names and the class that a method is of."""
    yield "", tree, None

    def of(node: Documented, prefix: str) -> Iterator[tuple[str, Documented, ast.ClassDef | None]]:
        for child in node.body:
            if isinstance(child, Definition) and not child.name.startswith("_"):
                yield prefix + child.name, child, node if isinstance(node, ast.ClassDef) else None
                if isinstance(child, ast.ClassDef):
                    yield from of(child, f"{prefix}{child.name}.")

    yield from of(tree, "")


def is_property(node: Documented) -> bool:
    names = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
    return any(name.endswith("property") for name in names)


def is_trivial(node: Documented) -> bool:
    """Returns whether a property is of a single statement, which says what it is as well as a sentence would."""
    return is_property(node) and len(node.body) == 1


def trees() -> dict[str, ast.Module]:
    paths = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    names = {str(path.relative_to(ROOT)): path for path in paths}
    return {name: ast.parse(path.read_text()) for name, path in names.items()}


def documented_methods(every: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Returns, by class, its methods with a docstring; those of protocols also under the name "Protocol"."""
    found: dict[str, set[str]] = {"Protocol": set()}
    for tree in every.values():
        for _, node, of in parts(tree):
            if of is not None and not isinstance(node, ast.Module) and ast.get_docstring(node):
                found.setdefault(of.name, set()).add(node.name)
                if "Protocol" in map(ast.unparse, of.bases):
                    found["Protocol"].add(node.name)
    return found


def needs_none(node: Documented, of: ast.ClassDef | None, methods: dict[str, set[str]]) -> bool:
    """Returns whether a part without a docstring is one that needs none (see the module's docstring)."""
    if isinstance(node, ast.Module) or of is None:
        return False
    inherited = {name for base in of.bases for name in methods.get(ast.unparse(base).rpartition(".")[2], ())}
    return node.name in PASSES or node.name in inherited | methods["Protocol"] or is_trivial(node)


def faults(every: dict[str, ast.Module]) -> list[str]:
    methods, found = documented_methods(every), []
    for path, tree in every.items():
        for name, node, of in parts(tree):
            docstring = ast.get_docstring(node)
            kinds = is_property(node), not isinstance(node, ast.Module | ast.ClassDef) and not is_property(node)
            wrong = "has no docstring" if docstring is None else fault(docstring, *kinds)
            if wrong and (docstring is not None or not needs_none(node, of, methods)):
                found.append(f"{path}{f', {name}' if name else ''}: {wrong}")
    return found


def test_docstrings_begin_with_sentences() -> None:
    every = trees()
    assert {"zbench/plans/plan.py", "systems/ring.py", "workloads/fill.py"} < every.keys()
    found = faults(every)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("docstring", "wrong"),
    [
        ("Returns the rank of every item.", ""),
        ("Is it right?", ""),
        ("zbench.runtime names it.", ""),
        ("`plan` is reversed.\n\nsize: bytes", ""),
        ("Of micro-batches, tried.", "begins with 'Of', as the end of another sentence"),
        ("The same with smaller ones.", "begins with 'The', as the end of another sentence"),
        ("Whether it fits.", "begins with 'Whether', as the end of another sentence"),
        ("Returns the rank", "does not begin with a sentence that ends in a full stop"),
        ("\n\nRaises:\n    ValueError: it is odd.", "does not begin with a sentence that ends in a full stop"),
        ("nodes, seconds: of the search.", "begins with a field, not with what has it"),
        ("returns the rank.", "begins neither with a capital nor with a name in code"),
        ("(offsets, items) of every row.", "begins neither with a capital nor with a name in code"),
    ],
)
def test_what_is_wrong_with_a_first_sentence(docstring: str, wrong: str) -> None:
    assert fault(docstring) == wrong


def test_a_function_begins_with_a_verb_and_a_property_need_not() -> None:
    assert fault("The rank of every item.", is_function=True).startswith("begins with 'The', and not with a verb")
    assert not fault("Returns the rank of every item.", is_function=True)
    assert fault("The rank of every item.") == ""
    assert fault("Whether it fits.", is_property=True) == ""


def test_a_part_without_a_docstring_is_found_unless_another_one_documents_it() -> None:
    source = """
class Source(Protocol):
    '''A source of batches.'''
    def batch(self): '''Returns a batch.'''
class Base:
    '''A base of sources.'''
    def close(self): '''Closes it.'''
class Mine(Base):
    '''A source of one's own.'''
    def batch(self): ...
    def close(self): ...
    def other(self): ...
    @property
    def size(self): return 1
    @property
    def whole(self):
        '''Whether all is there.'''
        return self.size > 0
    def _hidden(self): ...
def loose(): ...
"""
    assert faults({"a.py": ast.parse("'''A module.'''" + source)}) == [
        "a.py, Mine.other: has no docstring",
        "a.py, loose: has no docstring",
    ]
    assert faults({"a.py": ast.parse(source)})[0] == "a.py: has no docstring"

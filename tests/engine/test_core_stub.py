"""The stub of the compiled core says what the core has, no more and no less."""

import ast
from pathlib import Path

import pyedge
from pyedge import _core

STUB = ast.parse(Path(pyedge.__file__).with_name("_core.pyi").read_text())


def stubbed(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return names | {n.target.id for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def test_module() -> None:
    assert stubbed(STUB.body) == {name for name in vars(_core) if not name.startswith("_")}


def test_classes() -> None:
    for node in STUB.body:
        if isinstance(node, ast.ClassDef):
            has = {name for name in vars(getattr(_core, node.name)) if not name.startswith("_")}
            assert {name for name in stubbed(node.body) if not name.startswith("_")} == has, node.name


def test_keywords_can_be_given_by_name() -> None:
    """pybind11 writes signatures into docstrings; every parameter the stub names stands there."""
    for node in STUB.body:
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(member, ast.FunctionDef) or member.name in ("__enter__", "__exit__", "__contains__"):
                continue
            doc = getattr(getattr(_core, node.name), member.name).__doc__ or ""  # type: ignore[attr-defined]
            for argument in [*member.args.args, *member.args.kwonlyargs]:
                wanted = argument.arg == "self" or member.decorator_list or f"{argument.arg}:" in doc
                assert wanted, f"{node.name}.{member.name}({argument.arg})"  # type: ignore[attr-defined]

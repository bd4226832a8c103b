"""A parsed chat template, rewritten so that all that it does is paid for.

Owns which statements and expressions there are, and where a price is put; what it is, the filters of these names say
(template_sandbox.py).
"""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

from pyedge.tokenizers.template_meter import TICK

MAX_ELIF = 200  # each is a level of recursion in Python's compiler
_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Break, nodes.Continue, nodes.With,
    nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Name,
    nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr,
    nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare,
    nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.And,
    nodes.Or, nodes.Not, nodes.Neg, nodes.Pos,
)  # fmt: skip
_TAGS = {"FromImport": "from", "Scope": "autoescape"}


class Rewriter(NodeTransformer):
    """Puts a price on what Jinja's environment does not see, and refuses what is not in _ALLOWED."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if type(node) not in _ALLOWED:
            kind = type(node).__name__
            raise TemplateSyntaxError(f"{{% {_TAGS.get(kind, kind.lower())} %}} is not for chat templates", node.lineno)
        return super().visit(node, *args, **kwargs)

    def visit_If(self, node: nodes.If) -> nodes.Node:
        if len(node.elif_) > MAX_ELIF:
            raise TemplateSyntaxError(f"more than {MAX_ELIF} {{% elif %}}", node.lineno)
        return self.generic_visit(node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(node))
        if node.test is not None:
            node.test = nodes.And(_tick(node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(node))
        return node

    visit_CallBlock = visit_Macro

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        size = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
        return [_tick_statement(node, size), node] if size else [node]

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = node.filter or _call("made", None, node.lineno)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.node is None:  # the content of a block
            node.node = _call("made", None, node.lineno)
        return node

    def visit_List(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node, node.lineno)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node, node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat", nodes.List(node.nodes, lineno=node.lineno), node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _read(node.expr)
        for operand in node.ops:
            operand.expr = _read(operand.expr)
        return _call("step", node, node.lineno)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        return _call("step", node, node.lineno)


def _call(name: str, value: nodes.Expr | None, lineno: int) -> nodes.Filter:
    return nodes.Filter(value, " " + name, [], [], None, None, lineno=lineno)


def _read(value: nodes.Expr) -> nodes.Expr:
    short = isinstance(value, nodes.Const) and not isinstance(value.value, str)
    return value if short else _call("read", value, value.lineno)


def _tick(at: nodes.Node, cost: int = TICK) -> nodes.Filter:
    return _call("tick", nodes.Const(cost, lineno=at.lineno), at.lineno)


def _tick_statement(at: nodes.Node, cost: int = TICK) -> nodes.ExprStmt:
    return nodes.ExprStmt(_tick(at, cost), lineno=at.lineno)

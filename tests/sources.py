"""The syntax trees of our own sources, each made once for all tests of one process.

Knows: how to parse. Must not know: any rule of the house.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the tree, breadth first."""
    return tuple(ast.walk(parsed(path)))

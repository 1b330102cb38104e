"""Packages whose names are imported on first use: `import manyviews` and the command line start without torch."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package: the names that the stub (.pyi) of its file imports.

    Type checkers read the same stub, so that each name is listed once.
    """
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module or package for node in imports for alias in node.names}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        is_module = modules[name] == package
        return import_module(f"{package}.{name}") if is_module else getattr(import_module(modules[name]), name)

    return load, lambda: sorted(modules), sorted(modules)

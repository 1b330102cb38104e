"""The structure of the source: packages in layers, a cheap import, unique file names, verbs for functions."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import manyviews

SOURCE = Path(manyviews.__file__).parent
PACKAGES = ["utils", "losses", "data", "transforms", "models", "loading", "metrics", "training", "runs", "evaluation"]
PACKAGES += ["api", "export", "report", "reproduce", "cli"]
"""In the order data flows: a package imports only packages before it."""
PARTICIPLE = re.compile(r"^[a-z]+(ed|en|ing|own|eld)$")
VERBS = {"embed", "open", "seed"}
NOUNS_AND_ADJECTIVES = {"cached_tile", "markdown", "masked_logsumexp", "masked_mean", "masked_sum"}
NOUNS_AND_ADJECTIVES |= {"required_energies", "squared_distance", "warning"}


def list_imports(file: Path) -> set[str]:
    """List the modules of manyviews that a file imports from, such as `losses` or `losses.base`."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = SOURCE / Path(*node.module.split(".")[1:])
            init = "".join(path.read_text() for path in folder.glob("__init__.py*"))
            # A module may share its name with a function that its package exports.
            submodules = {
                a.name for a in node.names if (folder / f"{a.name}.py").exists() and f" as {a.name}\n" not in init
            }
            modules |= {f"{node.module}.{name}" for name in submodules} or {node.module}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module.removeprefix("manyviews.") for module in modules if module.startswith("manyviews.")}


def list_public_functions(file: Path) -> list[str]:
    """List the functions and methods of a file without a leading underscore."""
    tree = ast.parse(file.read_text())
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    functions = [node for scope in scopes for node in scope.body if isinstance(node, ast.FunctionDef)]
    # A property is an attribute, which a participle may name.
    plain = [node for node in functions if not any("property" in ast.unparse(d) for d in node.decorator_list)]
    return [node.name for node in plain if not node.name.startswith("_")]


def test_packages_import_only_packages_before_them_and_through_their_init() -> None:
    checked = 0
    for file in SOURCE.rglob("*.py"):
        package = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package.startswith("__"):
            continue
        allowed = {"utils"} if package == "losses" else set(PACKAGES[: PACKAGES.index(package)])
        imports = {module for module in list_imports(file) if module.split(".")[0] != package}
        assert imports <= allowed, f"{file.relative_to(SOURCE)} imports {imports - allowed}"
        checked += 1
    assert checked > 100


def test_no_two_modules_have_the_same_file_name() -> None:
    names = [file.name for file in SOURCE.rglob("*.py") if not file.name.startswith("__")]
    assert sorted(names) == sorted(set(names))


def test_public_functions_are_not_named_by_participles_or_of() -> None:
    names = {
        (str(file.relative_to(SOURCE)), name) for file in SOURCE.rglob("*.py") for name in list_public_functions(file)
    }
    assert len(names) > 300
    participles = {pair for pair in names if PARTICIPLE.match(word := pair[1].split("_")[0]) and word not in VERBS}
    assert {pair for pair in participles if pair[1] not in NOUNS_AND_ADJECTIVES} == set()
    assert {pair for pair in names if pair[1].endswith("_of")} == set()


def test_importing_the_package_imports_no_torch() -> None:
    heavy = ("torch", "numpy", "rich", "tyro", "lightning_fabric")
    code = f"import sys, manyviews; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"

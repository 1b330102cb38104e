"""A room imports only rooms above it, and importing the package is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import manyviews

SOURCE = Path(manyviews.__file__).parent
ROOMS = ["utils", "losses", "data", "views", "models", "evaluation", "training", "export", "report"]
ROOMS += ["experiments", "cli"]


def imported_rooms(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("manyviews.")}


def test_a_room_imports_only_rooms_above_it() -> None:
    checked = 0
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        above = {"__version__"} | set(ROOMS[: ROOMS.index(room) + 1])
        assert imported_rooms(file) <= above, f"{file.name} of {room} imports {imported_rooms(file) - above}"
        if room == "losses":
            assert imported_rooms(file) <= {"utils", "losses"}
        checked += 1
    assert checked > 5


def test_importing_the_package_imports_no_torch() -> None:
    heavy = ("torch", "numpy", "rich", "tyro", "lightning_fabric")
    code = f"import sys, manyviews; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in manyviews.__all__:
        assert getattr(manyviews, name) is not None
    assert set(manyviews.__all__) <= set(dir(manyviews))

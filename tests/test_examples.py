import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def test_points_on_a_sphere_meet_and_spread() -> None:
    said = run("examples/sphere.py", "--steps", "40")
    rows = dict(re.findall(r"│ (\S+) +│ +([\d.]+) │ +-[\d.]+ │", said))
    assert float(rows["(start)"]) > 1.5
    assert float(rows["mv-dhel"]) < 0.2


def test_modalities_of_digits_are_classified_by_every_subset() -> None:
    said = run("examples/modalities.py", "--epochs", "2")
    rows = dict(re.findall(r"│ ([a-z +]+?) +│ ([\d.]+)% +│", said))
    assert len(rows) == 15
    assert float(rows["pixels + fourier + profiles + gradients"]) > 90


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_code_of_the_documentation_runs(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    if blocks:
        (tmp_path / "page.py").write_text("\n".join(blocks))
        run(str(tmp_path / "page.py"))


def test_readme_code_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    code = "\n".join(re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in blocks)
    file = tmp_path / "readme.py"
    file.write_text(code + "\nprint(mv.losses.audit(Mine()))")
    assert "simultaneous_alignment=True" in run(str(file))

"""The package as it is handed out: versions agree, wheel and sdist hold what is needed, hooks are valid."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.tags import sys_tags

import manyviews

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    return build_package(tmp_path_factory.mktemp("dist"))


def build_package(folder: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_versions_agree(built: Path) -> None:
    version = manyviews.__version__
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^## {re.escape(version)}$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    wheel, sdist = sorted((path.name for path in built.iterdir()), key=len, reverse=True)
    assert sdist == f"manyviews-{version}.tar.gz"
    name, tag = wheel.removesuffix(".whl").rsplit("-", 3)[0], "-".join(wheel.removesuffix(".whl").rsplit("-", 3)[1:])
    assert name == f"manyviews-{version}"
    assert tag in {str(supported) for supported in sys_tags()}
    assert tag.endswith("-any") != bool(shutil.which("cc") and sys.platform != "win32")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["false", "no-such-compiler --fast"])
def test_without_a_working_compiler_there_is_a_wheel_for_all_platforms(compiler: str, tmp_path: Path) -> None:
    """Also if the compiler fails without a message."""
    (wheel,) = build_package(tmp_path, CC=compiler).glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_all_words_of_the_compiler_are_used(tmp_path: Path) -> None:
    (wheel,) = build_package(tmp_path, CC="env cc").glob("*.whl")
    assert [name for name in ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.slow
def test_wheel_contains_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if name.startswith("manyviews/")}
    source = ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert inside == {name for name in wanted if "__pycache__" not in name}


@pytest.mark.slow
def test_wheel_trains_without_the_checkout(built: Path, tmp_path: Path) -> None:
    """Outside the checkout, so that nothing is found that the wheel does not bring."""
    (wheel,) = built.glob("*.whl")
    with ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    for arguments in (
        "train --help",
        "train --max-instances 160 --batch-size 16 --epochs 1 --monitor-size 0 --no-evaluate-at-end -o run",
    ):
        command = [sys.executable, "-m", "manyviews", *arguments.split()]
        environment = {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
        where = [sys.executable, "-c", "import manyviews; print(manyviews.__file__)"]
        told = subprocess.run(where, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
        assert told.startswith(str(tmp_path))
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=environment)
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 11


@pytest.mark.slow
def test_sdist_contains_tests_docs_and_build_files(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    for name in (
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "tests/test_project.py",
        ".pre-commit-config.yaml",
        ".github/workflows/ci.yml",
    ):
        assert name in inside
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= inside


@pytest.mark.slow
def test_pre_commit_hooks_are_valid() -> None:
    subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")], check=True
    )


def test_ci_runs_make_targets_on_all_supported_versions() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert commands == {"make test", "make dist", "make docs"}
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command.removeprefix("make ") for command in commands} <= set(targets)
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]
    assert f'\nrequires-python = ">={versions[0]}"\n' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_benchmarks_run_and_write_one_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--threads", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmarks.json").read_text())
    assert {row["suite"] for row in results["rows"]} == {"losses", "views", "training", "evaluation"}
    for row in results["rows"]:
        assert row["ratio"] == pytest.approx(row["cost"] / row["baseline_cost"])
    assert {"pytorch-metric-learning", "lightly", "torch"} <= set(results["versions"])
    text = (tmp_path / "benchmarks.md").read_text()
    assert all(f"| {row['workload']} | {row['baseline']} |" in text for row in results["rows"])

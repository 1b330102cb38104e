"""What README and docs say can be done is done: Python blocks run, commands and their flags exist."""

import contextlib
import csv
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import tyro
from PIL import Image

import manyviews as mv
from manyviews.cli.app import COMMANDS, TYRO_CONFIG
from manyviews.losses import LOSSES
from manyviews.reproduce import EXPERIMENTS
from manyviews.training import RECIPES

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md"))
)
MEASURED = {"theorem", "principles", "synergy"}


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documentation's names are: runs/demo, a.jpg, b.jpg and a folder of pictures."""
    place = tmp_path_factory.mktemp("docs")
    (place / "pictures").mkdir()
    for number, image in enumerate(mv.load_dataset("photos")["test"].images[:16]):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        picture.save(place / "pictures" / f"{number}.png")
        if number < 2:
            picture.save(place / f"{'ab'[number]}.jpg")
    config = mv.Config(epochs=1, max_instances=128, batch_size=64, monitor_size=0, evaluate_at_end=False, cpu_threads=1)
    mv.train(config, output=place / "runs/demo")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in (ROOT / page).read_text()])
def test_python_blocks_run_and_print_the_documented_output(
    page: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = (ROOT / page).read_text()
    monkeypatch.chdir(place)
    exec("\n".join(blocks(text, "python")), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line not in text.splitlines()] == []


@pytest.mark.slow
def test_each_loss_has_a_page_whose_code_runs() -> None:
    hooks = runpy.run_path(str(ROOT / "docs/hooks.py"))
    assert set(hooks["LOSS_PAGES"]) == set(LOSSES)
    pages = {name: hooks["make_loss_page"](name) for name in LOSSES}
    for page in pages.values():
        (code,) = blocks(page, "python")
        exec(code, {})
    assert "| `pair_loss` | `'infonce'` |" in pages["pwe-infonce"]
    assert "| `temperature` | `0.25` |" in pages["kcl"]
    assert "| `learn_temperature` | `True` |" in pages["siglip"]


@pytest.mark.parametrize("page", PAGES)
def test_links_have_a_target(page: str) -> None:
    """As they stand in the repository; the pages of objectives are made with the site."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    wanted = [target for target in targets if not target.startswith("losses/")]
    assert [target for target in wanted if not ((ROOT / page).parent / target).exists()] == []


def table(page: str, title: str) -> list[list[str]]:
    """Rows of the first table below a line."""
    below = (ROOT / page).read_text().split(title, 1)[1]
    lines = re.search(r"((?:^\|.*\n)+)", below, re.MULTILINE)
    assert lines
    return [[cell.strip(" `") for cell in line.strip("|\n").split("|")] for line in lines[1].splitlines()[2:]]


def assert_readme_has(rows: list[list[str]], title: str) -> None:
    """README has exactly these rows below a line; the message is what to paste there."""
    expected = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    below = (ROOT / "README.md").read_text().split(title, 1)[1]
    found = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", below, re.MULTILINE)
    assert found
    assert found[1] == expected, f"the rows of README below {title} should be\n\n{expected}"


def format_cost(cost: float) -> str:
    return f"{cost:,.{0 if cost >= 100 else 1}f}"


def test_readme_benchmarks_equal_the_measured_table() -> None:
    measured = json.loads((ROOT / "docs/results/benchmarks.json").read_text())["rows"]
    assert not any(row["max_ratio"] and row["ratio"] > row["max_ratio"] for row in measured)
    rows = {(row["workload"].replace("`", ""), row["baseline"].replace("`", "")): row for row in measured}
    expected = []
    for workload, baseline, *_ in table("README.md", "`make bench`"):
        row = rows[workload.replace("`", ""), baseline.replace("`", "")]
        costs = [f"{format_cost(row[name])} {row['unit']}" for name in ("cost", "baseline_cost")]
        expected.append([row["workload"], row["baseline"], *costs, f"{1 / row['ratio']:.3g}"])
    assert_readme_has(expected, "`make bench`")


def find_setting(page: str) -> tuple[str, str]:
    """The command that made a table of results, and its seeds, instances and epochs; README repeats both."""
    text = (ROOT / page).read_text()
    command, seeds, limits = (
        re.search(pattern, text, re.MULTILINE)
        for pattern in (r"^Made by `(.*)`\.$", r"; (\d+ seeds?);", r"; ([^;]* training instances, \w+ epochs)")
    )
    assert command
    assert seeds
    assert limits
    return f"`{command[1]}`", f"({seeds[1]}; {limits[1]})"


@pytest.mark.parametrize("name", ["table1", "multimodal"])
def test_readme_has_the_command_and_setting_of_its_results(name: str) -> None:
    command, setting = find_setting(f"docs/results/{name}.md")
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{command} {setting}" in readme, f"README should have\n\n{command} {setting}"


def test_readme_results_equal_the_result_tables() -> None:
    with (ROOT / "docs/results/table1.csv").open() as file:
        found = {
            (row["loss"], row["views"]): f"{float(row['mean']):.1f}"
            + (f" ± {float(row['deviation']):.1f}" if row["deviation"] else "")
            for row in csv.DictReader(file)
            if row["metric"] == "linear" and row["data"] == "cifar10"
        }
    expected = []
    for loss in dict.fromkeys(loss for loss, _ in found):
        name = f"{loss}-infonce" if loss in ("pwe", "avg") else loss
        expected.append([f"`{name}`", *(found.get((loss, views), "") for views in "234")])
    assert_readme_has(expected, "`manyviews reproduce table1")


def test_readme_differences_equal_those_of_the_claims() -> None:
    texts = []
    for page in ("table1", "knn"):
        claims = table(f"docs/results/{page}.md", "**The paper's claims")
        (claim,) = (cells for cells in claims if re.match(r"mv-dhel has a better .*views 4\)", cells[0]))
        numbers = [float(number) for number in re.findall(r"[+-]\d+\.\d+", " ".join(claim[2:4]))]
        texts.append("{:.1f} points ({:.1f} to {:.1f})".format(*numbers))
    readme = " ".join((ROOT / "README.md").read_text().split())
    for text in texts:
        assert text in readme, f"README should have: {text}"


def test_readme_has_the_accuracies_at_the_best_temperature_of_each_loss() -> None:
    accuracies = {row[1]: row[2].split(" ")[0] for row in table("docs/results/temperature.md", "**linear probe, %**")}
    search = table("docs/results/temperature.md", "**Search with seed 0")
    best = {row[1]: row[-1] for row in search}
    assert best["pvc"] == best["pwe"]
    text = (
        f"`pvc` and `pwe-infonce` reach {accuracies['pvc']} and {accuracies['pwe']}% at {best['pvc']}, and "
        f"`mv-dhel` {accuracies['mv-dhel']}% at {best['mv-dhel']}"
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert text in readme, f"README should have: {text}"


def test_readme_multimodal_results_equal_the_result_tables() -> None:
    page = "docs/results/multimodal.md"
    raw_features = [row[2].removesuffix("% ± 0.0") for row in table(page, "**Baselines")]
    fused = {name: cells for name, *cells in table(page, "**linear probe, %**")}
    supervised = {name: cells for name, *cells in table(page, "**supervised head, %**")}
    expected = [
        ["linear model on raw features", *raw_features],
        ["`mv-dhel`, fused representation", *fused["mv-dhel"]],
        ["supervised head", *supervised["supervised"]],
    ]
    assert_readme_has(expected, "`manyviews reproduce multimodal")


def test_readme_demo_results_equal_those_of_getting_started() -> None:
    rows = {name: cells for name, *cells in table("docs/start.md", "with `--cpu-threads 1`")}
    (raw_knn, raw_linear), (knn, linear) = rows["raw features (pixels)"], rows["trained encoder"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"linear probe has {linear} test accuracy (pixels: {raw_linear}), its kNN {knn} ({raw_knn})" in readme


def test_readme_comparison_is_a_part_of_the_whole_table() -> None:
    title = "manyviews | lightly"
    whole, part = table("docs/comparison.md", "# Comparison"), table("README.md", "others do not, and the reverse")
    assert title in (ROOT / "README.md").read_text()
    assert [row for row in part if row not in whole] == []
    assert len(part) <= 10
    (losses,) = (row[1] for row in whole if row[0] == "losses")
    assert int(losses) == len(LOSSES)
    assert f"choosing one of {len(LOSSES)}" in (ROOT / "README.md").read_text()


@cache
def flags(command: str) -> set[str]:
    """The flags of a command, as its help lists them."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        tyro.cli(COMMANDS[command], args=["--help"], config=TYRO_CONFIG)
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said.getvalue()))


def simple_commands(text: str) -> Iterator[list[str]]:
    """The commands of shell code, as words, and those in the running text's `manyviews ...`."""
    for block in blocks(text, "bash"):
        done = subprocess.run(["bash", "-n"], input=block, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            command: list[str] = []
            for word in words:
                if set(word) <= set("();<>|&"):
                    yield command
                    command = []
                else:
                    command.append(word)
            yield command
    for inline in re.findall(r"`((?:manyviews|make|python|pip|torchrun) [^`\n]+)`", text):
        yield shlex.split(inline)


def problem(words: list[str]) -> str | None:
    """What is wrong with a command, if it is one of ours."""
    while words and words[0] in ("do", "then", "if"):
        words = words[1:]
    words = words[words.index("torchrun") :] if "torchrun" in words else words  # whatever starts it
    if not words:
        return None
    program = words[0].rsplit("/", 1)[-1]
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
        named = [word for word in words[1:] if f"$({word.partition('=')[0]})" not in makefile or "=" not in word]
        return None if set(named) <= targets else f"no target {named}"
    if program == "pip" and "install" in words:
        extras = (ROOT / "pyproject.toml").read_text()
        named = [name for word in words for part in re.findall(r"\[(.*?)\]", word) for name in part.split(",")]
        return next((f"no extra {name}" for name in named if f"\n{name} = [" not in extras), None)
    if program.startswith("python") and len(words) > 1 and words[1].endswith(".py"):
        script = ROOT / words[1]
        if not script.exists():
            return f"no script {script}"
        unknown = [word for word in words[2:] if word.startswith("-") and word not in script.read_text()]
        return f"{words[1]} has no {unknown}" if unknown else None
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        get_args_parser().parse_args(words[1:])
    if "-m" in words:
        module = words[words.index("-m") + 1]
        if module == "benchmarks":
            return None if set(words[3:]) <= {"losses", "views", "training", "evaluation"} else f"no {words[3:]}"
        words = words[words.index("-m") + 1 :] if module == "manyviews" else []
    return of_ours(words[1:]) if words and words[0] == "manyviews" else None


def of_ours(words: list[str]) -> str | None:
    name, *rest = words
    if name not in COMMANDS:
        return f"no command {name}"
    for word, following in pairwise([*rest, ""]):
        known = flags(name)
        if word.startswith("-") and word not in known:
            return f"{name} has no {word}"
        if following.startswith("$") or following.isupper():
            continue
        names = following.split("+") if word in ("--loss", "--losses") else ()
        if any(part.rpartition("*")[2] not in {*LOSSES, "pwe", "avg"} for part in names):
            return f"no objective {following}"
        if word == "--recipe" and following not in RECIPES and not following.endswith(".yaml"):
            return f"no recipe {following}"
    if (
        name == "reproduce"
        and rest
        and not rest[0].startswith("-")
        and rest[0] not in {*EXPERIMENTS, *MEASURED, "NAME"}
    ):
        return f"no table {rest[0]}"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_documented_commands_and_flags_exist(page: str) -> None:
    wrong = [(found, words) for words in simple_commands((ROOT / page).read_text()) if (found := problem(list(words)))]
    assert wrong == []


def test_unknown_commands_and_flags_are_detected() -> None:
    """The check itself can fail."""
    text = """
```bash
manyviews train --viewz 4
make nothing
torchrun --nproc-per-node 2 -m manyviews train --loss mv-nothing
pip install '.[nothing]'
python examples/sphere.py --nothing
manyviews reproduce table9
```
and `manyviews nothing`"""
    assert sum(problem(words) is not None for words in simple_commands(text)) == 7


@pytest.mark.slow
def test_site_has_no_external_resources_and_renders_equations(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {f"losses/{name}.html" for name in LOSSES} <= set(pages)
    for name, page in pages.items():
        assert "arithmatex" not in page, name
        fetched = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(https?:[^\"]+)", page)
        assert [address for address in fetched if "canonical" not in address] == [], name
    assert all("<math" in pages[f"losses/{name}.html"] for name in LOSSES)
    assert "MVDHELLoss(" in re.sub(r"<[^>]+>", "", pages["api/losses.html"])
    assert "{{ losses }}" not in pages["choosing.html"]

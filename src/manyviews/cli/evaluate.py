"""`manyviews evaluate`."""

import statistics
from typing import Any, Literal

from manyviews.cli.console import Device, RunPath


def evaluate_run(
    run: RunPath,
    data: str | None = None,
    probe: Literal["lbfgs", "sgd"] = "lbfgs",
    augment: bool = False,
    learning_rate: float | None = None,
    epochs: int | None = None,
    few: tuple[float, ...] = (0.01, 0.1),
    baselines: bool = True,
    workers: int = 2,
    device: Device = "auto",
) -> None:
    """Tell what a run is worth: kNN, linear probe and geometry, also in RUN/evaluation.json.

    Args:
        run: the directory of a finished run.
        data: other data, for transfer: photos, digits, cifar10, cifar100, or a path.
        probe: lbfgs finds the minimum, with a penalty chosen on a part of the training set; sgd is the paper's.
        augment: the sgd probe encodes other crops, half of them mirrored, in each epoch; slow.
        learning_rate: of the sgd probe; the paper's for the data if not given.
        epochs: of the sgd probe; the paper's for the data if not given.
        few: shares of the labels with which the probe is fitted too, three draws of each.
        baselines: compare with pixels, where images are small, and with the encoder before it was trained.
        workers: processes that read images from disk.
        device: auto takes a GPU if there is one.
    """
    from manyviews.training import EvaluationConfig, Run, evaluate
    from manyviews.training.assess import evaluation_name

    how = EvaluationConfig(probe, augment, learning_rate, epochs, few, baselines, workers)
    opened = Run.open(run)
    found = evaluate(opened, data=data, how=how, device=device)
    show_scores(found)
    show_geometry(found)
    print(f"written to {opened.path / evaluation_name(data, found['data'])}")


def show_scores(found: dict[str, Any]) -> None:
    """A table of kNN and linear probe, or why there is none."""
    from rich.console import Console
    from rich.table import Table

    if found["scores"] is None:
        print(found["why"])
        return
    tested = "held-out" if found["held_out"] else found["split"]
    known = f"labels of {found['train_instances']:,}; probe {found['probe']['method']}"
    print(f"{found['data']}: {found['test_instances']:,} {tested} instances, {known}")
    for note in found["notes"]:
        print(f"note: {note}")
    few = next(iter(found["scores"].values()))["few"]
    table = Table()
    table.add_column("representation")
    for title in ("kNN", "linear probe", *(f"{one['labels']:,} labels" for one in few.values())):
        table.add_column(title, justify="right")
    for name, score in found["scores"].items():
        draws = [_mean(one["linear"]) for one in score["few"].values()]
        table.add_row(name, f"{score['knn']:.1%}", f"{score['linear']:.1%}", *draws)
    Console().print(table)


def _mean(shares: list[float]) -> str:
    return f"{statistics.mean(shares):.1%} ± {100 * statistics.stdev(shares):.1f}"


def show_geometry(found: dict[str, Any]) -> None:
    """A table of how representations and embeddings lie on the sphere."""
    from rich.console import Console
    from rich.table import Table

    geometry = found["geometry"]
    if geometry is None:
        return
    print(f"{geometry['views']} views of {geometry['instances']:,} {found['split']} instances:")
    table = Table()
    table.add_column("geometry")
    table.add_column("h", justify="right")
    table.add_column("z", justify="right")
    table.add_column("h representations, z embeddings")
    for name, says in _GEOMETRY.items():
        table.add_row(name, *(_value(geometry[key], name) for key in "hz"), says)
    Console().print(table, markup=False)


def _value(shape: dict[str, Any], name: str) -> str:
    return f"{shape[name]} of {shape['dimensions']}" if name == "rank" else f"{shape[name]:.3f}"


_GEOMETRY = {
    "alignment": "distance² of two views, 0 best",
    "uniformity": "0 for one point, -4 spread evenly",
    "wasserstein": "1 for one point, 0 spread evenly",
    "recall@1": "another view is the nearest",
    "rank": "dimensions filled",
    "rankme": "dimensions used evenly",
}

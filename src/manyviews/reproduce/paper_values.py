"""The paper's values, shown next to reproduced ones where the setting is the same.

Accuracies are top-1, in percent, by dataset and loss for each number of views. Losses have the names of its tables.
"""

from manyviews.reproduce.trials import Coordinates

DATA = ("cifar10", "cifar100", "imagenet100", "imagenet1k")
NAMES = ("pwe", "avg", "pvc", "mv-infonce", "mv-dhel")

_LINEAR = {
    "cifar10": ((86, 87.5, 88.7), (86, 87.4, 88.2), (85.8, 87.0, 88.0), (86, 87.8, 88.8), (87.4, 89.1, 89.5)),
    "cifar100": ((58.1, 59.9, 60.9), (58.1, 60.4, 60.8), (57.3, 60.3, 61.1), (58.1, 60.6, 61.2), (59.4, 61.8, 62.7)),
    "imagenet100": ((72.2, 75, 73.9), (72.2, 74.8, 73.7), (72.2, 75, 74.4), (72.2, 75.2, 75.8), (73.3, 77.1, 77.2)),
    "imagenet1k": ((60, 61.2, 62), (60, 61, 61.6), (59.7, 61.4, 62.4), (60, 60.8, 61.2), (61.2, 61.9, 62.6)),
}
_KNN = {
    "cifar10": {"pwe": (82.3, 83.4), "pvc": (82.3, 83.6), "mv-infonce": (83, 84.3), "mv-dhel": (85.1, 86.7)},
    "cifar100": {"pwe": (43.9, 45.1), "pvc": (43.8, 45.3), "mv-infonce": (44.9, 45.9), "mv-dhel": (49.9, 51.8)},
    "imagenet100": {"pwe": (65.3, 63.3), "pvc": (63.8, 65.6), "mv-infonce": (64.7, 65.9), "mv-dhel": (68.5, 70.1)},
    "imagenet1k": {"pwe": (42.1, 43.8), "pvc": (42.4, 43.7), "mv-infonce": (42.5, 44.9), "mv-dhel": (42.6, 46.3)},
}
_OTHER = {"mv-cl1": (72.2, 74.6, 74.8), "mv-cl2": (73.3, 76.7, 76.8)}
_MEMORY = {
    "cifar10": {64: 89.49, 128: 89.52, 256: 89.47},
    "cifar100": {64: 62.43, 128: 62.78, 256: 62.73},
    "imagenet100": {64: 77.32, 128: 77.38, 256: 77.23},
}
_MULTIMODAL = {
    "cmu-mosei": {
        "supervised": (82.9, 0.587), "pwe": (75.4, 0.707), "avg": (75.7, 0.713), "pvc": (74.3, 0.755),
        "mv-infonce": (76.8, 0.708), "mv-dhel": (79.6, 0.668),
    },
    "ch-sims": {
        "supervised": (83.2, 0.354), "pwe": (76.1, 0.448), "avg": (76.3, 0.468), "pvc": (68.1, 0.563),
        "mv-infonce": (76.6, 0.421), "mv-dhel": (79.4, 0.392), "mv-cl1": (75.19, 0.434), "mv-cl2": (79.08, 0.394),
    },
}  # fmt: skip


def get_linear_value(coords: Coordinates, _metric: str = "") -> float | None:
    """Look up the linear-probe table, and MV-CL1 and MV-CL2 on ImageNet-100."""
    data, loss, views = str(coords["data"]), str(coords["loss"]), int(coords["views"])
    values = dict(zip(NAMES, _LINEAR[data], strict=True)) if data in _LINEAR else {}
    if data == "imagenet100":
        values |= _OTHER
    return values[loss][views - 2] if loss in values and 2 <= views <= 4 else None


def get_knn_value(coords: Coordinates, metric: str = "knn") -> float | None:
    """Look up the kNN table (three and four views)."""
    values = _KNN.get(str(coords["data"]), {}).get(str(coords["loss"]))
    views = int(coords["views"])
    return values[views - 3] if values is not None and views in (3, 4) and metric == "knn" else None


def get_memory_value(coords: Coordinates, _metric: str = "") -> float | None:
    """Look up four-view MV-DHEL by the number of unique instances in a batch."""
    return _MEMORY.get(str(coords["data"]), {}).get(int(coords["batch"]))


def get_multimodal_value(coords: Coordinates, metric: str) -> float | None:
    """Look up two-class accuracy (percent) or MAE of multimodal data; for supervised training, those of its head."""
    values = _MULTIMODAL.get(str(coords["data"]), {}).get(str(coords["loss"]))
    prefix = "head-" if coords["loss"] == "supervised" else ""
    accuracy = {"cmu-mosei": "has0", "ch-sims": "mult"}.get(str(coords["data"]), "")
    indices = {f"{prefix}{accuracy}": 0, f"{prefix}mae": 1}
    return values[indices[metric]] if values is not None and metric in indices else None

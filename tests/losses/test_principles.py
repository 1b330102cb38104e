"""`check_principles` reproduces the paper's Table I, and accepts losses of users."""

import csv
import math
import re
from pathlib import Path

import pytest
import torch

from manyviews.cli.losses_command import describe_cost
from manyviews.losses import PrinciplesReport, check_principles, get_loss, masked_logsumexp, safe_logaddexp
from tests.losses.loss_by_name import ENERGY_LOSSES
from tests.losses.reference import table_one_pwe


@pytest.mark.slow
@pytest.mark.parametrize("views", [3, 4, 5])
def test_principles_equal_table_one_of_the_paper(views: int) -> None:
    reports = {
        name: check_principles(get_loss(name), views) for name in ("pwe-infonce", "pvc", "mv-infonce", "mv-dhel")
    }
    pairs = math.comb(views, 2)
    assert reports == {
        "pwe-infonce": PrinciplesReport(False, False, pairs, "direct"),
        "pvc": PrinciplesReport(False, False, 2 * pairs, "direct"),
        "mv-infonce": PrinciplesReport(True, True, 1, "direct"),
        "mv-dhel": PrinciplesReport(True, True, 1, "none"),
    }
    assert check_principles(get_loss("pwe-ntxent"), views) == reports["pwe-infonce"]
    assert check_principles(table_one_pwe, views) == reports["pwe-infonce"]
    assert [report.decoupled for report in reports.values()] == [False, False, False, True]


@pytest.mark.parametrize("views", [3, 4])
def test_mv_cl1_and_mv_cl2_have_a_term_for_each_view(views: int) -> None:
    assert check_principles(get_loss("mv-cl1"), views) == PrinciplesReport(True, True, views, "direct")
    assert check_principles(get_loss("mv-cl2"), views) == PrinciplesReport(True, True, views, "none")


@pytest.mark.parametrize("name", [name for name in ENERGY_LOSSES if name not in ("siglip", "kcl", "dcl")])
def test_two_view_losses_have_one_term_and_satisfy_the_principles(name: str) -> None:
    """With two views all losses are InfoNCE, NT-Xent or DHEL."""
    reports = check_principles(get_loss(name), views=2)
    if not name.startswith(("avg", "prod")):  # the second view is a mean or product of one view
        assert reports.simultaneous_alignment
        assert reports.terms == 1
        assert reports.accurate_energy


@pytest.mark.parametrize("name", ENERGY_LOSSES)
def test_report_does_not_depend_on_temperature(name: str) -> None:
    views = 2 if get_loss(name).max_views == 2 else 3
    assert check_principles(get_loss(name), views) == check_principles(get_loss(name, temperature=0.07), views)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_report_does_not_depend_on_scale(scale: float) -> None:
    for name in ("pvc", "mv-infonce", "mv-dhel"):
        formula = get_loss(name).formula
        assert check_principles(lambda P, A, f=formula: scale * f(P, A)) == check_principles(formula)


def test_a_loss_that_ignores_a_positive_does_not_align_all_views() -> None:
    def partial_alignment(P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        return A.diagonal(dim1=1, dim2=2).sum(1) - masked_logsumexp(P[:, 0], 1)

    assert check_principles(partial_alignment) == PrinciplesReport(False, True, 1, "none")


def test_a_loss_without_positives_in_its_cross_view_energy() -> None:
    def decoupled(P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        return masked_logsumexp(A.flatten(1), 1) - masked_logsumexp(P.flatten(1), 1)

    assert check_principles(decoupled) == PrinciplesReport(True, False, 1, "indirect")


def test_principles_of_other_framework_settings() -> None:
    from manyviews.losses import MultiViewContrastiveLoss

    assert check_principles(MultiViewContrastiveLoss("logsumexp", "mean", "cross_view")) == PrinciplesReport(
        True, True, 1, "direct"
    )
    assert check_principles(MultiViewContrastiveLoss("logsumexp", "logsumexp", "same_view")).coupling == "none"


def test_a_loss_without_energies_has_no_accurate_energy() -> None:
    assert check_principles(lambda P, A: -masked_logsumexp(P.flatten(1), 1)) == PrinciplesReport(True, False, 1, "none")


def test_check_principles_accepts_a_function_that_returns_the_mean() -> None:
    def mean_loss(P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        energy = masked_logsumexp(safe_logaddexp(P, A).flatten(1), 1)
        return (energy - masked_logsumexp(P.flatten(1), 1)).mean()

    assert check_principles(mean_loss) == check_principles(get_loss("mv-infonce", same_view_negatives=True))


def test_a_loss_of_two_views_is_checked_at_two_views() -> None:
    assert check_principles(get_loss("infonce")) == PrinciplesReport(True, True, 1, "direct")
    assert check_principles(get_loss("dhel")) == PrinciplesReport(True, True, 1, "none")


@pytest.mark.parametrize("name", ["symile", "gram", "triangle", "pmrl", "mmcr", "emp-ssl", "lejepa"])
def test_error_says_why_the_principles_cannot_be_measured(name: str) -> None:
    loss = get_loss(name)
    with pytest.raises(TypeError, match=f"principles of {type(loss).__name__} cannot be measured: {loss.audit_error}"):
        check_principles(loss)


@pytest.mark.slow
def test_stored_principles_equal_the_measured_ones() -> None:
    """docs/results/principles.csv, at the largest number of views up to four."""
    with (Path(__file__).parents[2] / "docs/results/principles.csv").open() as file:
        rows = [row for row in csv.reader(file) if row[0] in ENERGY_LOSSES]
    stored = {}
    for name, p1, p2, terms, coupling in rows:
        counts = {int(views): int(count) for count, views in re.findall(r"(\d+) \((\d+)\)", terms)}
        stored[name] = PrinciplesReport(p1 == "yes", p2 == "yes", counts.get(4, counts.get(2)), coupling)
    assert stored == {name: check_principles(get_loss(name)) for name in ENERGY_LOSSES}


def test_costs_are_numbers_of_inner_products() -> None:
    expected = {
        "M²": {"infonce", "dhel"},
        "M² N": {"mv-dhel", "mv-cl2", "pwe-dhel", "anchored", "kcl"}
        | {f"{kind}-{pair}" for kind in ("avg", "prod") for pair in ("infonce", "ntxent", "dhel")},
        "M² N²": {"mv-infonce", "mv-cl1", "pvc", "pvc-arithmetic", "pwe-infonce", "pwe-ntxent"}
        | {"ntxent", "supcon", "dcl", "siglip"},
    }
    costs = {name: describe_cost(get_loss(name)) for name in ENERGY_LOSSES}
    assert costs == {name: cost for cost, names in expected.items() for name in names}

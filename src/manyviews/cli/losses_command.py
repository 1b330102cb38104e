"""`manyviews losses`: print all losses."""

from __future__ import annotations

import manyviews as mv


def losses_command(views: int = 4) -> None:
    """Print every loss with its equation, its cost and the paper's principles, which are measured.

    Args:
        views: Number of views per instance at which the principles are measured.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=_LEGEND.format(views=views), caption_justify="left", pad_edge=False)
    for name in ("name", "loss per instance", "cost", "P1", "P2", "P3", "coupling"):
        table.add_column(name, no_wrap=name in ("name", "cost"), justify="right" if name == "P3" else "left")
    for name, make_loss in mv.losses.LOSSES.items():
        loss = make_loss()
        table.add_row(name, loss.equation, describe_cost(loss), *_describe_principles(loss, views))
    console = Console()
    if not console.is_terminal:
        console = Console(width=132)
    console.print(table, markup=False)


def _describe_principles(loss: mv.MultiViewLoss, views: int) -> tuple[str, ...]:
    if loss.audit_error:
        return ("-",) * 4
    report = mv.losses.check_principles(loss, views=int(min(views, loss.max_views)))
    marks = ("✓" if holds else "✗" for holds in (report.simultaneous_alignment, report.accurate_energy))
    return *marks, str(report.terms), report.coupling


def describe_cost(loss: mv.MultiViewLoss) -> str:
    """Format how the number of inner products grows, from the energies that the loss requires."""
    if not isinstance(loss, mv.EnergyLoss):
        return loss.cost
    if loss.max_views == 2:
        return "M²"
    few, many = (len(loss.required_energies(views)) for views in (8, 16))
    return "M² N²" if many > 3 * few else "M² N"


_LEGEND = """\
M instances, N views, d dimensions, S slices. P positives, A energies (N, N); LSE log-sum-exp, (+) logaddexp,
off all l != m. The cost is a number of inner products, or of operations if it has a d. Losses can be added:
mv-infonce+0.5*prod-infonce.
Measured by differentiating each loss at {views} views (2 for two-view losses): P1 all views are aligned
simultaneously, P2 the energy covers all pairs of points, P3 number of terms per instance, and the coupling
of alignment and uniformity. They do not apply (-) to losses that are not functions of P and A: those of all
views at once (symile, gram, triangle, pmrl) and those without pairs of instances (mmcr, emp-ssl, lejepa)."""

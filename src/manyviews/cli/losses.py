"""`manyviews losses`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyviews.losses import Objective


def losses(views: int = 4) -> None:
    """Show every objective: its equation, its cost and its measured principles.

    Args:
        views: how many views an instance has where the principles are measured.
    """
    from rich.console import Console
    from rich.table import Table

    from manyviews.losses import OBJECTIVES, audit

    table = Table(caption=_LEGEND.format(views=views), caption_justify="left", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("loss of an instance")
    table.add_column("cost", no_wrap=True)
    table.add_column("P1", justify="center")
    table.add_column("P2", justify="center")
    table.add_column("P3", justify="right")
    table.add_column("coupling")
    for name, make in OBJECTIVES.items():
        objective = make()
        found = audit(objective, views=int(min(views, objective.most_views)))
        table.add_row(
            name,
            objective.equation,
            cost(objective),
            _MARKS[found.simultaneous_alignment],
            _MARKS[found.accurate_energy],
            str(found.terms),
            found.coupling,
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=132)
    console.print(table, markup=False)


def cost(objective: "Objective") -> str:
    """How the number of products grows, from the energies the objective reads."""
    if objective.most_views == 2:
        return "M²"
    few, many = (int(objective.blocks(views).sum()) for views in (8, 16))
    return "M² N²" if many > 3 * few else "M² N"


_MARKS = {True: "✓", False: "✗"}
_LEGEND = """\
M instances, N views. P positives, A energies (N, N); LSE log-sum-exp, (+) logaddexp, off all l != m.
Measured by differentiating each loss at {views} views (2 for losses of two views): P1 all views aligned
at once, P2 energy of a complete configuration, P3 terms of an instance, and what couples alignment to
uniformity."""

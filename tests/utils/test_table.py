"""One table in every format, with texts that could be taken for markup."""

import csv
import io

import pytest

from manyviews.utils import Cell, Row, Table

NAME = "a|b <i>&amp; 5% x_1 \x1b[31m\ntwo"
TABLE = Table(
    f"Title of {NAME}",
    ("name", "left", "$#{}~^\\", "score"),
    [
        Row(NAME, [Cell("text"), Cell("1.5 ± 0.1"), Cell("10.0%", 0.1, subtext="k = 5")], subtext="first [bold]row[/]"),
        Row("plain", [Cell("2 words"), Cell("-20"), Cell("\N{EN DASH}")]),
    ],
    [f"Note: {NAME}."],
)
SHOWN = r"a|b <i>&amp; 5% x_1 \x1b[31m\ntwo"


def test_markdown() -> None:
    name = r"a\|b &lt;i>&amp; 5% x_1 \x1b[31m two"
    assert TABLE.to_markdown().splitlines() == [
        f"**Title of {name}**",
        "",
        "| name | left | $#{}~^\\ | score |  |",
        "|---|---|---|---|---|",
        f"| {name} | text | 1.5 ± 0.1 | 10.0% k = 5 | first [bold]row[/] |",
        "| plain | 2 words | -20 | \N{EN DASH} |  |",
    ]


def test_latex() -> None:
    name = r"a|b <i>\&amp; 5\% x\_1 \textbackslash{}x1b[31m two"
    assert TABLE.to_latex().splitlines() == [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{Title of {name}}}",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"name & left & \$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} & score &  \\",
        r"\midrule",
        rf"{name} & text & 1.5 $\pm$ 0.1 & 10.0\% k = 5 & first [bold]row[/] \\",
        "plain & 2 words & -20 & \N{EN DASH} &  \\\\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_csv_keeps_every_character() -> None:
    assert list(csv.reader(io.StringIO(TABLE.to_csv(), newline=""))) == [
        ["name", "left", "$#{}~^\\", "score", ""],
        [NAME, "text", "1.5 ± 0.1", "10.0%\nk = 5", "first [bold]row[/]"],
        ["plain", "2 words", "-20", "\N{EN DASH}", ""],
    ]


def test_terminal_output_is_literal_aligned_and_not_truncated(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    TABLE.print()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"Title of {SHOWN}",
        "",
        "  name                                left        $#{}~^\\   score",
        " " + "─" * 86,
        f"  {SHOWN}   text      1.5 ± 0.1   10.0%   first [bold]row[/]",
        "                                                            k = 5",
        "  plain                               2 words         -20       \N{EN DASH}",
        "",
        f"Note: {SHOWN}.",
    ]


def test_texts_without_subtext_have_no_extra_column(capsys: pytest.CaptureFixture) -> None:
    table = Table.from_texts("", ("loss", "2 views"), [("pvc", "41.9"), ("mv-dhel", "5")])
    assert table.list_texts() == [["loss", "2 views"], ["pvc", "41.9"], ["mv-dhel", "5"]]
    table.print()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "",
        "  loss      2 views",
        " ───────────────────",
        "  pvc          41.9",
        "  mv-dhel         5",
        "",
    ]


def test_a_table_without_rows_has_a_header() -> None:
    table = Table("Nothing", ("a", "b"), ())
    assert table.to_markdown().splitlines()[2:] == ["| a | b |", "|---|---|"]
    assert table.to_csv() == "a,b\n"


def test_headings_are_broken_after_commas_only_if_the_table_is_too_wide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    table = Table.from_texts("", ("name", "one probe, mean imputation", "one probe, shared space"), [("a", "1", "2")])
    for columns, lines in (("100", ["one probe, mean imputation"]), ("45", ["one probe,", "mean imputation"])):
        monkeypatch.setenv("COLUMNS", columns)
        table.print()
        output = capsys.readouterr().out
        assert all(line in output for line in lines)
        assert ("one probe, mean" in output) == (columns == "100")
        assert max(len(line.rstrip()) for line in output.splitlines()) <= int(columns)

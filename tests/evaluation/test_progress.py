"""Long work shows that it lives; short work says nothing."""

import pytest

from manyviews.evaluation import progress
from manyviews.evaluation.progress import quiet, tracked


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER", -1.0)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)


def test_short_work_says_nothing(capsys: pytest.CaptureFixture) -> None:
    assert list(tracked([1, 2, 3], "counting", 3)) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_long_work_says_how_far_it_is(capsys: pytest.CaptureFixture) -> None:
    assert list(tracked(["ab", "c"], "letters", 3, len)) == ["ab", "c"]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["letters: 2 of 3, 0:00 left", "letters: 3 of 3, 0:00 left"]
    assert list(tracked("ab", "letters")) == ["a", "b"]
    assert capsys.readouterr().err.splitlines() == ["letters: 1", "letters: 2"]


@pytest.mark.usefixtures("impatient")
def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(tracked(range(5), "[bold] work", 5)) == [0, 1, 2, 3, 4]
    err = capsys.readouterr().err
    assert "[bold] work" in err
    assert "5/5" in err


@pytest.mark.usefixtures("impatient")
def test_of_work_within_work_the_outer_one_is_shown(capsys: pytest.CaptureFixture) -> None:
    for _ in tracked([1, 2], "outer", 2):
        list(tracked([1, 2], "inner", 2))
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["outer", "outer"]
    with quiet():
        list(tracked([1, 2], "inner", 2))
    assert capsys.readouterr().err == ""
    list(tracked([1], "after", 1))
    assert "after" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_work_that_fails_leaves_no_silence_behind(capsys: pytest.CaptureFixture) -> None:
    def failing() -> object:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(tracked(failing(), "failing", 2))
    list(tracked([1], "after", 1))
    assert "after" in capsys.readouterr().err

"""Progress is shown for long work only."""

import pytest

from manyviews.utils import hide_progress, progress, track


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", -1.0)
    monkeypatch.setattr(progress, "LOG_EVERY_SECONDS", -1.0)


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture) -> None:
    assert list(track([1, 2, 3], "counting", 3)) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("no_delay")
def test_long_work_shows_progress(capsys: pytest.CaptureFixture) -> None:
    assert list(track(["ab", "c"], "letters", 3, len)) == ["ab", "c"]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["letters: 2 of 3, 0:00 left", "letters: 3 of 3, 0:00 left"]
    assert list(track("ab", "letters")) == ["a", "b"]
    assert capsys.readouterr().err.splitlines() == ["letters: 1", "letters: 2"]


@pytest.mark.usefixtures("no_delay")
def test_terminals_show_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(track(range(5), "[bold] work", 5)) == [0, 1, 2, 3, 4]
    err = capsys.readouterr().err
    assert "[bold] work" in err
    assert "5/5" in err


@pytest.mark.usefixtures("no_delay")
def test_nested_progress_is_hidden(capsys: pytest.CaptureFixture) -> None:
    for _ in track([1, 2], "outer", 2):
        list(track([1, 2], "inner", 2))
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["outer", "outer"]
    with hide_progress():
        list(track([1, 2], "inner", 2))
    assert capsys.readouterr().err == ""
    list(track([1], "after", 1))
    assert "after" in capsys.readouterr().err


@pytest.mark.usefixtures("no_delay")
def test_progress_is_shown_again_after_an_error(capsys: pytest.CaptureFixture) -> None:
    def failing() -> object:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(track(failing(), "failing", 2))
    list(track([1], "after", 1))
    assert "after" in capsys.readouterr().err

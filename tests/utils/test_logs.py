"""Log records and Python warnings reach stderr, log.txt and the handlers of the user, on rank zero only."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import manyviews as mv
from manyviews.utils import FILE_ONLY, ConsoleHandler, handle_logs, log_training, logger, read_log
from tests.helpers.tiny_run import tiny_config


@pytest.fixture(autouse=True)
def _show_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def log_everything() -> None:
    logger.info("info")
    logger.info("file only", extra=FILE_ONLY)
    logger.warning("100% of \x1b[31mred\n  files")
    warnings.warn("from: torch\n  indented", stacklevel=1)


MESSAGES = [("INFO", "info"), ("INFO", "file only"), ("WARNING", r"100% of \x1b[31mred\n  files")]
MESSAGES += [("WARNING", r"from: torch\n  indented")]
LINES = ["info", f"warning: {MESSAGES[2][1]}", f"warning: {MESSAGES[3][1]}"]


def read_messages(path: Path) -> list[tuple[str, str]]:
    return [(entry.level, entry.message) for entry in read_log(path)]


def test_records_from_before_and_after_the_file_is_opened_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with log_training(is_rank_zero=True, quiet=False) as log:
        log_everything()
        log.open(tmp_path / "log.txt")
        assert read_messages(tmp_path / "log.txt") == MESSAGES
        log_everything()
    logger.warning("afterwards")
    assert read_messages(tmp_path / "log.txt") == 2 * MESSAGES
    assert capsys.readouterr().err.splitlines() == 2 * LINES


def test_quiet_prints_nothing_and_other_ranks_log_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with log_training(is_rank_zero=True, quiet=True) as log:
        log.open(tmp_path / "log.txt")
        log_everything()
    assert read_messages(tmp_path / "log.txt") == MESSAGES
    with log_training(is_rank_zero=False, quiet=False) as log:
        log.open(tmp_path / "other.txt")
        log_everything()
    assert not (tmp_path / "other.txt").exists()
    assert capsys.readouterr() == ("", "")


def test_an_error_is_logged_and_raised(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(KeyError), log_training(is_rank_zero=True, quiet=False) as log:  # noqa: PT012
        log.open(tmp_path / "log.txt")
        raise KeyError("loss")
    assert read_messages(tmp_path / "log.txt") == [("ERROR", "KeyError: 'loss'")]
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_reported_and_does_not_raise(capsys: pytest.CaptureFixture) -> None:
    with log_training(is_rank_zero=True, quiet=False) as log:
        log.open(Path("/dev/full"))
        logger.info("text")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["text", "warning: cannot write /dev/full: [Errno 28] No space left on device"]


def test_warnings_are_yellow_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with handle_logs(ConsoleHandler("manyviews: ")):
        logger.info("info")
        logger.warning("text")
    assert capsys.readouterr().err == "info\n\x1b[1;33mmanyviews: warning: text\x1b[0m\n"


def test_handlers_of_the_user_replace_stderr(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = logging.FileHandler(tmp_path / "mine.txt")
    logger.addHandler(file)
    try:
        with log_training(is_rank_zero=True, quiet=False):
            logger.info("text")
    finally:
        logger.removeHandler(file)
        file.close()
    assert (tmp_path / "mine.txt").read_text() == "text\n"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("level", "expected"), [(logging.INFO, ["info", "warning"]), (logging.WARNING, ["warning"])])
def test_the_root_logger_receives_what_its_level_allows(
    level: int, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level)
    with handle_logs(ConsoleHandler()), log_training(is_rank_zero=True, quiet=False):
        logger.info("info")
        logger.warning("warning")
    assert [record.getMessage() for record in caplog.records] == expected


def test_the_level_of_the_logger_limits_stderr_and_not_the_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger.setLevel(logging.ERROR)
    try:
        with log_training(is_rank_zero=True, quiet=False) as log:
            log.open(tmp_path / "log.txt")
            log_everything()
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(logging.NOTSET)
    assert read_messages(tmp_path / "log.txt") == MESSAGES
    assert capsys.readouterr().err == ""


def test_warnings_are_shown_as_before_after_the_context() -> None:
    with handle_logs(ConsoleHandler()), handle_logs(ConsoleHandler()):
        pass
    with pytest.warns(UserWarning, match="text"):
        warnings.warn("text", stacklevel=1)
    logging.captureWarnings(True)
    try:
        show = warnings.showwarning
        with handle_logs(ConsoleHandler()):
            pass
        assert warnings.showwarning is show
    finally:
        logging.captureWarnings(False)


def test_the_format_of_a_log_file(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "2026-01-01 12:00:00+02:00  INFO        indented\n"
        "2026-01-01 12:00:01+02:00  WARNING   COLLAPSE: 2026-01-01 12:00:00  ERROR     text\n"
        "2026-01-01 12:00:02  warning: of version 0.1\n"
        "traceback  WARNING   text\n"
        "2026-01-01 12:00:03+00:00  CRITICAL  \n"
    )
    assert [tuple(entry) for entry in read_log(path)] == [
        ("2026-01-01 12:00:00+02:00", "INFO", "  indented"),
        ("2026-01-01 12:00:01+02:00", "WARNING", "COLLAPSE: 2026-01-01 12:00:00  ERROR     text"),
        ("2026-01-01 12:00:03+00:00", "CRITICAL", ""),
    ]


def test_a_training_logs_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = mv.train(tiny_config(epochs=1), output=tmp_path / "run")
    messages = [message for level, message in read_messages(run.path / "log.txt") if level == "INFO"]
    assert messages == capsys.readouterr().err.splitlines()
    assert any(message.startswith("step 5/5  epoch 0  loss ") for message in messages)

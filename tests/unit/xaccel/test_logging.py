"""Who logs, and that nobody else does."""

from __future__ import annotations

import logging

import pytest

from xaccel.logging import get_logger
from xaccel.process.topology import ProcessTopology, set_current_topology


@pytest.mark.parametrize(("index", "expected"), [(0, ["everybody", "main"]), (1, ["everybody"])])
def test_the_main_process_logs_unless_told_otherwise(index: int, expected: list[str], caplog: pytest.LogCaptureFixture) -> None:
    set_current_topology(ProcessTopology(process_index=index, num_processes=2))
    logger = get_logger("xaccel.test", "info")
    logger.info("everybody", main_process_only=False)
    logger.info("main")
    assert [record.message for record in caplog.records] == expected


def test_before_any_accelerator_the_launcher_s_rank_counts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("RANK", "1")
    get_logger("xaccel.test").warning("main")
    assert not caplog.records


def test_level_and_arguments(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("xaccel.test", "WARNING")
    logger.info("below")
    logger.warning("loss %.1f", 0.25)
    assert [record.message for record in caplog.records] == ["loss 0.2"]
    assert logger.logger.level == logging.WARNING


def test_the_caller_s_line_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("xaccel.test")
    logger.warning("here")
    logger.warning("here, in order", in_order=True)
    assert {record.filename for record in caplog.records} == {"test_logging.py"}


def test_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("xaccel.test")
    for _ in range(3):
        logger.warning_once("the same")
    assert len(caplog.records) == 1

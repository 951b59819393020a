"""What a driver on a cluster is told by its command line, and what it finds out of its submission."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from airflow_logio import __version__
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY, DriverArguments, own_submission
from airflow_logio.store.records.driver_records import Claim, Submission

CLAIM = Claim(run_id=7, run_uid="ab" * 16, group="sums[2]", incarnation=3, nonce="n0nce", recovery=True, code=2)
YARN = Submission("yarn", "http://rm:8088", "logio-abababab-sums-3-0f")
STANDALONE = msgspec.structs.replace(YARN, manager="standalone", address="spark://one:7077,two:7077")
KUBERNETES = Submission("kubernetes", "https://api:6443", "logio-abababab-sums-3-0f", "data")


@pytest.mark.parametrize("submission", [YARN, STANDALONE, KUBERNETES])
@pytest.mark.parametrize(
    "conf", [{}, {CONNECTIONS_PROPERTY: "/etc/with space.json"}, {CONNECTIONS_PROPERTY: "hdfs://nn:8020/c.json"}]
)
def test_the_words_say_all_and_are_no_secret(submission: Submission, conf: dict[str, str]) -> None:
    parser = argparse.ArgumentParser()
    DriverArguments.add_to(parser)
    told = DriverArguments.of(CLAIM, submission, conf)
    assert DriverArguments.parsed(parser.parse_args(told.words())) == told
    assert (told.run_uid, told.group, told.incarnation, told.nonce) == (CLAIM.run_uid, "sums[2]", 3, "n0nce")
    assert told.version == __version__
    assert told.connections == conf.get(CONNECTIONS_PROPERTY)


def test_a_version_that_is_not_said_is_another_one() -> None:
    parser = argparse.ArgumentParser()
    DriverArguments.add_to(parser)
    words = [word for word in DriverArguments.of(CLAIM, YARN, {}).words() if not word.startswith("--version")]
    assert DriverArguments.parsed(parser.parse_args(words)) == replace(DriverArguments.of(CLAIM, YARN, {}), version="")


@pytest.mark.parametrize(
    ("told", "environment", "folder", "found"),
    [
        (YARN, {"CONTAINER_ID": "container_1796051687921_0001_01_000001"}, "x", ("application_1796051687921_0001", 1)),
        (
            YARN,
            {"CONTAINER_ID": "container_e17_1796051687921_12345_02_000001"},
            "x",
            ("application_1796051687921_12345", 2),
        ),
        (YARN, {"CONTAINER_ID": "container_?"}, "x", ("", 0)),
        (YARN, {}, "driver-20261130151140-0000", ("", 0)),
        (STANDALONE, {}, "driver-20261130151140-0000", ("driver-20261130151140-0000", 0)),
        (STANDALONE, {}, "work", ("", 0)),
        (KUBERNETES, {"CONTAINER_ID": "container_1796051687921_0001_01_000001"}, "x", ("", 0)),
    ],
)
def test_a_driver_finds_its_submission(
    told: Submission, environment: dict[str, str], folder: str, found: tuple[str, int]
) -> None:
    own = own_submission(told, environment, Path("/work") / folder)
    assert own == msgspec.structs.replace(told, id=found[0], attempt=found[1])

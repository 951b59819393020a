"""Publishing into a bucket through storms: requests fail, drivers are killed, and zombies go on beside their successors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bucket_storm import BucketStorm
from tests.support.faulty_store import faulty_store
from tests.support.lakes import BucketLake, reached
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.slow


SEEDS = [(["objects", "proxied_objects"][seed // 3], seed) for seed in range(6)]


@pytest.mark.parametrize(("store", "seed"), SEEDS)
def test_what_counts_is_what_the_runs_have_written(
    store: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    objects: ObjectStore = request.getfixturevalue(store)
    with reached(objects), faulty_store(objects.port) as way:
        lake = BucketLake(objects, objects.new_bucket())
        lake.url += f"?scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1&consistent=yes"
        variables = {name: value for name, value in objects.variables.items() if name != "AWS_ENDPOINT_URL"}
        storm = BucketStorm(seed, lake, way, variables, tmp_path)
        storm.blow()
        assert storm.hurt > 0, "no driver was killed or stopped"
        assert storm.failed > 0, "no request has failed"
        assert lake.counted() == storm.expected()

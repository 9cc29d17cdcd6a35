"""Jobs that were submitted with features, for the tests of samples."""

from __future__ import annotations

from nodemgr.core.forecast import features as feature_form
from nodemgr.core.model.entities import PredictedRun
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import GIB, features
from tests.jobs.world import World

MODEL = "Test GPU"


def submit_predicted(world: World, script: str) -> str:
    """A job with the figures that `job_submit` with features gives it."""
    plain = world.submission(script)
    row = PredictedRun(MODEL, 4 * GIB, None, 20_000_000, 20_000, 30_000)
    payload = replace(plain.payload, features=feature_form.as_text(features()))
    run = replace(plain.run, predicted=(row,), expected_ms=30_000)
    (answer,) = world.submit_all([replace(plain, payload=payload, run=run)])
    assert answer.job_id is not None
    return answer.job_id

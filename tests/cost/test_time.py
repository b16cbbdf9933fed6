"""The time model finds the law behind samples, takes measured ops as they are, and says how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.cost.samples import OpSample
from handheld.cost.time import TimeModel
from handheld.cost.work import Work
from helpers.costs import RATES, law, matmul


@pytest.fixture(scope="module")
def model() -> TimeModel:
    draw = np.random.default_rng(0)
    sizes = np.exp2(draw.uniform(4, 12, (120, 3))).astype(int).tolist()
    return TimeModel(RATES, [OpSample(work, law(work)) for work in (matmul(*size) for size in sizes)])


def test_unseen_products_follow_the_law(model: TimeModel):
    draw = np.random.default_rng(1)
    works = [matmul(*size) for size in np.exp2(draw.uniform(5, 11, (40, 3))).astype(int).tolist()]
    costs = model.ops(works)
    errors = [abs(cost.seconds / law(work) - 1) for work, cost in zip(works, costs, strict=True)]
    assert np.median(errors) < 0.1 and np.percentile(errors, 90) < 0.3
    inside = [cost.low_s <= law(work) <= cost.high_s for work, cost in zip(works, costs, strict=True)]
    assert np.mean(inside) > 0.8
    assert all(cost.source == "model" for cost in costs)


def test_a_measured_op_is_taken_as_it_is(model: TimeModel):
    sample = next(iter(model.known.values()))
    cost = model.op(sample.work)
    assert cost.source == "measured" and cost.seconds == pytest.approx(sample.seconds)
    assert model.ops([sample.work], exact=False)[0].source == "model"


def test_far_from_samples_the_interval_is_wide(model: TimeModel):
    near, far = model.op(matmul(300, 300, 300)), model.op(matmul(1, 1, 1 << 24))
    assert far.high_s / far.low_s > 2 * near.high_s / near.low_s


def test_a_family_without_samples_is_predicted_from_ceilings(model: TimeModel):
    work = Work("sort", "sort 1000 > 1000", "sort", 10, 0, 8000)
    cost = model.op(work)
    assert cost.source == "ceilings" and cost.bound == "launches"
    assert cost.high_s / cost.low_s > 10


def test_without_any_sample_the_ceilings_decide():
    cost = TimeModel(RATES).op(matmul(1024, 1024, 1024))
    assert cost.seconds == pytest.approx(2 * 1024**3 / 1e12 + 1e-6) and cost.bound == "compute"


def test_bandwidth_follows_the_working_set():
    assert RATES.bytes_s(1000) == 4e11 and RATES.bytes_s(1 << 40) == 1e11
    assert RATES.bytes_s(1 << 25) == pytest.approx(2e11)


def test_words_of_a_signature():
    work = Work("conv", "conv 8x6x14x14 16x6x5x5:f16 > 8x16x10x10 padding=2x2 groups=2 e3", "direct, 16 lanes", 2, 1, 1)
    assert work.words.output == (8, 16, 10, 10) and work.words.inputs[1].dtype == "f16"
    assert work.words.attrs == {"padding": "2x2", "groups": "2"} and work.words.epilogue == 3
    assert work.style == "direct, # lanes" and work.numbers == (16,)

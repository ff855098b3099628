"""Scaling laws against the brief's table, closed forms and published figures; sizes without data or torch."""

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.errors import UsageError
from zoo import parallel, scaling, serving
from zoo.budget import Budget, with_budget
from zoo.hardware import gpu_named
from zoo.recommend import recommend
from zoo.registry import load_registry
from zoo.sizing import Sizes, answer, count
from zoo.sizing_text import as_text, short

_ROOT = Path(__file__).resolve().parents[2]
GPT = scaling.ShapeRule(64, 128, 32768, 2)
A100, H100 = gpu_named("a100"), gpu_named("h100")

# The brief's table: parameters, tokens, FLOPs and A100-hours as printed, and the step to which the hours are rounded.
TABLE = [
    (125e6, 2.5e9, 1.9e18, 6, 1),
    (350e6, 7e9, 1.5e19, 48, 1),
    (1e9, 20e9, 1.2e20, 385, 5),
    (7e9, 140e9, 5.9e21, 19_000, 1_000),
    (13e9, 260e9, 2.0e22, 65_000, 1_000),
    (70e9, 1.4e12, 5.9e23, 1.9e6, 1e5),
]


def sizes(name="text/gpt-pretrain", **said):
    registry = load_registry()
    return answer(registry.get(name), registry, Sizes(**said))


# --- the table of the brief -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("params", "tokens", "flops", "hours", "step"), TABLE)
def test_each_row_of_the_brief_follows_from_the_formulas_within_its_rounding(params, tokens, flops, hours, step):
    assert scaling.tokens_for(params) == tokens
    exact = scaling.training_flops(params, tokens)
    assert float(f"{exact:.1e}") == flops
    # The row of 350M took its hours from FLOPs already rounded: 6 N D itself gives 47.2, which is not 48.
    used = flops if params == 350e6 else exact
    assert abs(scaling.gpu_hours(used, 312, scaling.TABLE_MFU) - hours) <= step / 2


def test_the_table_implies_the_mfu_that_is_assumed_where_none_is_stated():
    implied = [scaling.implied_mfu(6 * params * tokens, hours, 312) for params, tokens, _, hours, _ in TABLE]
    assert round(statistics.median(implied), 3) == scaling.TABLE_MFU == 0.277
    assert all(0.27 < mfu < 0.28 for mfu in implied)


@pytest.mark.parametrize(("params", "tokens", "flops", "hours", "step"), TABLE)
def test_zoo_plan_prints_the_same_table_when_no_gpu_is_named(params, tokens, flops, hours, step):
    row = sizes(params=params)["rows"][0]
    assert (row["rule"], row["tokens"]) == ("compute-optimal", tokens)
    assert row["gpu_hours"] == pytest.approx(hours, rel=0.02)  # 350M is 1.6 % off, as above


# --- the three errors of the sources --------------------------------------------------------------------------------


def test_error_1_one_pass_over_new_data_is_worth_all_of_it_not_63_percent():
    def wrong(epochs):
        return 1 - math.exp(-epochs)

    assert wrong(1) == pytest.approx(0.632, abs=1e-3)
    assert scaling.effective_tokens(5e9, 1) == 5e9
    # "4 epochs are worth 85 %" stands beside it; that formula says 98 % of the unique data, the paper 93 % of the total.
    assert wrong(4) == pytest.approx(0.982, abs=1e-3)
    assert scaling.effective_tokens(5e9, 4) / (4 * 5e9) == pytest.approx(0.93, abs=0.005)


def test_error_2_8_bit_moments_save_75_percent_of_the_states_and_30_only_of_a_total():
    assert scaling.saved_by_8bit() == 0.75
    assert scaling.saved_by_8bit(total_bytes=20) == pytest.approx(0.30)
    assert scaling.saved_by_8bit(scaling.TRAINING_BYTES) == pytest.approx(0.375)


def test_error_3_the_line_to_bandwidth_bound_is_peak_over_bandwidth_not_50():
    assert round(serving.ridge(A100)) == 153
    assert round(serving.ridge(H100)) == 295
    work = 100.0
    assert not work < 50  # the flat rule: bound by arithmetic
    assert serving.is_bandwidth_bound(work, A100)
    assert serving.is_bandwidth_bound(work, H100)
    assert not serving.is_bandwidth_bound(200, A100)
    assert serving.is_bandwidth_bound(200, gpu_named("gb10")) is None


# --- laws and their inverses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [0, 2048, 131072])
@pytest.mark.parametrize("ratio", [20.0, 200.0])
@pytest.mark.parametrize("params", [1e6, 125e6, 70e9])
def test_parameters_to_flops_and_back_give_the_same_parameters(params, ratio, context):
    law = scaling.Law(context, GPT)
    flops = law.flops(params, ratio * params)
    assert scaling.params_within(flops, ratio, law) == pytest.approx(params, rel=1e-9)
    assert scaling.tokens_within(flops, params, law) == pytest.approx(ratio * params, rel=1e-12)
    assert scaling.params_on(flops, ratio * params, law) == pytest.approx(params, rel=1e-9)


def test_without_attention_the_best_size_is_a_square_root():
    assert scaling.params_within(1e20) == pytest.approx(math.sqrt(1e20 / 120), rel=1e-12)


def test_hours_to_flops_and_back_give_the_same_hours():
    flops = scaling.flops_within(192, 989.5, 0.4)
    assert scaling.gpu_hours(flops, 989.5, 0.4) == pytest.approx(192)
    assert scaling.implied_mfu(flops, 192, 989.5) == pytest.approx(0.4)


def test_attention_of_gpt3_adds_what_its_shape_says():
    # GPT-3: 96 layers, width 12,288, context 2,048: 2.9e10 FLOPs a token beside 6 N = 1.05e12.
    with_it = scaling.training_flops(174.6e9, 1, layers=96, width=12288, context=2048)
    assert with_it - scaling.training_flops(174.6e9, 1) == pytest.approx(12 * 96 * 12288 * 2048)
    assert with_it / 1.0476e12 == pytest.approx(1.0277, abs=1e-3)


@pytest.mark.parametrize("epochs", [0.5, 1, 2, 4, 16, 40])
def test_passes_to_worth_and_back_give_the_same_passes(epochs):
    assert scaling.epochs_worth(3e9, scaling.effective_tokens(3e9, epochs)) == pytest.approx(epochs)


def test_no_number_of_passes_is_worth_more_than_the_limit():
    most = 1e9 * (1 + scaling.REPEATS_SCALE)
    assert scaling.effective_tokens(1e9, 1e6) == pytest.approx(most)
    assert scaling.epochs_worth(1e9, 1.001 * most) == math.inf
    # The slope of the first repeat is 1: a token seen a second time is at first as good as a new one.
    assert scaling.effective_tokens(1e9, 1.001) == pytest.approx(1.001e9, rel=1e-6)


def test_a_shape_has_about_the_parameters_it_was_asked_for_and_counts_embeddings():
    for params in (125e6, 1e9, 70e9):
        shape = scaling.shape_of(params, GPT)
        assert shape.params == pytest.approx(params, rel=0.15)
        assert shape.width % 128 == 0
        assert shape.params * shape.embedding_share == pytest.approx(2 * 32768 * shape.width)
    assert scaling.shape_of(125e6, GPT).embedding_share > 0.3 > 0.02 > scaling.shape_of(70e9, GPT).embedding_share


def test_rates_move_with_the_width():
    assert scaling.width_factor(768) == 1
    assert scaling.width_factor(3072) == 0.5
    moved = scaling.mup_rates(0.01, width=4096, tuned_at=256)
    assert moved == {"hidden": 0.01 / 16, "output": 0.01 / 16, "embedding": 0.01, "vector": 0.01}


# --- serving --------------------------------------------------------------------------------------------------------


def test_the_cache_of_published_models_has_its_published_size():
    llama2_7b, llama3_8b = serving.Cache(32, 32, 128), serving.Cache(32, 8, 128)
    assert llama2_7b.bytes_per_token == 512 * 1024  # 2 GiB at 4,096 positions
    assert llama2_7b.bytes_for(4096) == 2 * 2**30
    assert llama3_8b.bytes_for(8192) == 2**30


def test_quantising_windows_and_pages_save_what_they_should():
    full = serving.Cache(32, 8, 128)
    assert serving.Cache(32, 8, 128, bytes_per_value=0.5).bytes_for(100) == full.bytes_for(100) / 4
    sliding = serving.Cache(32, 8, 128, window=1024, full_layers=8)
    assert sliding.bytes_for(1024) == full.bytes_for(1024)
    assert sliding.bytes_for(8192) == full.bytes_for(8192) * (8 * 8192 + 24 * 1024) / (32 * 8192)
    assert [serving.paged_positions(n) for n in (1, 16, 17)] == [16, 16, 32]


def test_one_sequence_cannot_be_faster_than_its_weights_are_read():
    assert serving.tokens_per_second(H100, 14e9) == pytest.approx(3350 / 14)


@pytest.mark.parametrize(
    ("params", "use"),
    [(5e8, "excellent"), (3e9, "good"), (8e9, "QLoRA"), (2e10, "fine-tune only"), (7e10, "inference only")],
)
def test_a_slow_memory_machine_has_a_use_for_each_size(params, use):
    assert serving.slow_memory_use(params) == use
    assert serving.slow_memory_use(1e11) == "not advised"


# --- the flowchart of compute ---------------------------------------------------------------------------------------

DAY = 24


@pytest.mark.parametrize(
    ("gpus", "hours", "params", "verdict", "spread"),
    [
        (1, 12, 300e6, "fine-tune rather than train", "one process"),
        (1, 12, 7e9, "LoRA or QLoRA", "one process"),
        (1, 3 * DAY, 1e9, "train from scratch", "one process"),
        (1, 3 * DAY, 7e9, "QLoRA", "one process"),
        (8, 3 * DAY, 3e9, "train from scratch", "DDP"),
        (4, 3 * DAY, 13e9, "fine-tune", "DDP"),
        (32, 21 * DAY, 7e9, "train from scratch, on at least 20 tokens a parameter", "FSDP or pipeline"),
        (512, 90 * DAY, 70e9, "train from scratch, on at least 20 tokens a parameter", parallel.RULES[-1].parallel),
        (1, 3 * DAY, 70e9, "too large: training it takes hundreds of GPUs, months", "one process"),
        (32, 21 * DAY, 70e9, "too large: training it takes hundreds of GPUs, months", "FSDP or pipeline"),
    ],
)
def test_the_flowchart_answers_as_the_brief_says(gpus, hours, params, verdict, spread):
    advice = parallel.compute_advice(params, gpus, hours, gpu=H100)
    assert (advice.verdict, advice.rule.parallel) == (verdict, spread)


def test_24_hours_are_a_day_and_7_days_still_belong_to_the_longer_rule():
    assert parallel.compute_rule(1, 23.9).name == "one GPU, under a day"
    assert parallel.compute_rule(1, 24).name == "one GPU, 1 to 7 days"
    assert parallel.compute_rule(32, 7 * DAY).name == "32 or more GPUs, weeks"


def test_conflicts_between_the_rules_and_the_arithmetic_are_named():
    # The rule trains 1B in up to a week on one GPU; Chinchilla's tokens take 386 hours of an A100.
    (cannot, goes_up) = parallel.compute_advice(1e9, 1, 7 * DAY - 1, gpu=A100).conflicts
    assert "cannot be done in time: 20 tokens a parameter take 386 A100-hours" in cannot
    assert "up to 1B from scratch, the hours at hand only to 658M" in goes_up
    # The rule says adapt; 50M parameters on 1B tokens take an hour.
    assert "the arithmetic says it can be done" in parallel.compute_advice(5e7, 1, 12, gpu=A100).conflicts[0]
    assert "no rule speaks of 2 GPUs" in parallel.compute_advice(1e9, 2, 900, gpu=H100).conflicts[0]
    small_card = parallel.compute_advice(3e9, 8, 100, gpu=gpu_named("4090")).conflicts
    assert any("the rule says DDP, but 60 GB do not fit the 24 GB" in says for says in small_card)
    assert parallel.compute_advice(1e9, 8, 100, gpu=H100, mfu=0.5).conflicts == ()


def test_a_copy_each_while_it_fits_then_parts_then_more_machines():
    def own(params, gpus, gpu=H100):
        return parallel.ways("text/gpt-pretrain", params, gpus, gpu)[0]

    assert own(1e9, 1).how == "zoo train text/gpt-pretrain"
    assert own(3e9, 8).name == "DDP"
    assert own(3e9, 8).how == "torchrun --standalone --nproc-per-node 8 -m zoo.cli train text/gpt-pretrain"
    assert own(7e9, 8).name == "FSDP2"
    assert own(7e9, 32).how.endswith("--nnodes 4 --nproc-per-node 8 --rdzv-endpoint HOST:29500 "
                                     "-m zoo.cli train text/gpt-pretrain --shard")  # fmt: skip
    assert own(70e9, 1).how.startswith("18 H100 at least")
    assert not own(70e9, 1).here


def test_what_the_zoo_does_not_run_is_named_for_elsewhere():
    def names(*asked, **more):
        return [way.name for way in parallel.ways("x", *asked, H100, **more) if not way.here]

    assert names(1e9, 8) == []
    assert names(7e9, 8) == ["tensor"]
    assert names(13e9, 64) == ["tensor", "pipeline"]
    assert names(1e9, 8, context=65536) == ["context"]
    assert names(1e9, 8, experts=True) == ["expert"]
    assert sorted(names(70e9, 512)) == ["context", "expert", "pipeline", "tensor"]  # with data: the five ways


# --- zoo plan -------------------------------------------------------------------------------------------------------


def test_a_size_is_found_from_tokens_flops_or_hours_alike():
    first = sizes(params=1e9)["rows"][0]
    for said in (
        {"tokens": first["tokens"]},
        {"flops": first["flops"]},
        {"hours": first["gpu_hours"] / 8, "gpu": "a100", "gpus": 8},
    ):
        assert sizes(**said)["rows"][0]["params"] == pytest.approx(1e9)
    ratios = [row["per_parameter"] for row in sizes(flops=1e20)["rows"]]
    assert ratios == pytest.approx([20, 100, 200])


def test_two_of_three_fix_the_third_and_the_best_split_stands_beside_them():
    asked, best = sizes(params=1e9, tokens=5e9)["rows"]
    assert (asked["flops"], best["flops"]) == pytest.approx((3e19, 3e19))
    assert best["params"] == pytest.approx(5e8)
    assert "a smaller model does better" in sizes(params=1e9, tokens=5e9)["notes"][-1]
    assert sizes(params=1e9, flops=6e19)["rows"][0]["tokens"] == pytest.approx(1e10)
    assert sizes(tokens=1e10, hours=10, gpu="h100", gpus=8)["rows"][0]["hours"] == pytest.approx(10)


def test_money_energy_and_repeats_are_stated_when_asked():
    found = sizes(params=1e9, gpu="h100", gpus=8, mfu=0.4, price=2.5, watts=700, unique=5e9)
    row = found["rows"][0]
    hours = 1.2e20 / (989.5e12 * 0.4 * 3600)
    assert row["gpu_hours"] == pytest.approx(hours)
    assert (row["hours"], row["cost"], row["kwh"]) == pytest.approx((hours / 8, hours * 2.5, hours * 0.7))
    assert found["repeating"]["epochs"] == 4
    assert found["repeating"]["effective"] == scaling.effective_tokens(5e9, 4)
    assert "4 passes over 5B tokens are worth 18.6B new ones (93%" in " ".join(as_text(found, 500).split())
    assert sizes(params=1e9, unique=1e8)["repeating"]["epochs_worth_all"] is None


def test_the_text_says_what_was_assumed_and_which_flops_are_counted():
    text = as_text(sizes(params=1e9), 500)
    assert "FLOPs = 6 N D; A100 with 312 TFLOP/s in bf16 (no --gpu named); 27.7% of that peak" in text
    assert "Attention is not in 6 N D" in text
    assert "12 layers d_model T D, T = 2048" in as_text(sizes(params=1e9, context=2048), 500)


@pytest.mark.parametrize("option", ["params", "tokens", "flops"])
@pytest.mark.parametrize("value", [1.0, 1e12, 1e30])
def test_the_smallest_and_largest_sizes_give_plain_numbers(option, value):
    found = sizes(**{option: value}, unique=1e9, context=4096, gpu="h100", gpus=100_000, price=1.0, watts=700.0)
    json.dumps(found, allow_nan=False)
    assert as_text(found)


def test_masked_models_say_that_the_ratio_is_a_guess_and_keep_no_cache():
    found = sizes("proteins/protein-lm", params=650e6)
    assert found["unit"] == "residues"
    assert "first guess" in found["notes"][0]
    assert found["serving"] is None


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({}, "say one of --params"),
        ({"price": 2.0}, "say one of --params"),
        ({"hours": 24}, "of which GPU"),
        ({"params": 1e9, "gpus": 8}, "of which GPU"),
        ({"flops": 1e20, "hours": 2, "gpu": "h100"}, "both say how much compute"),
        ({"params": 1e9, "tokens": 1e9, "flops": 1e20}, "two of parameters, tokens and compute fix the third"),
        ({"params": -1.0}, "--params -1: must be a number above 0"),
        ({"params": 1e9, "mfu": 40}, "For 40 % write 0.4"),
        ({"params": 1e9, "gpu": "h101"}, "Did you mean .*H100"),
        ({"hours": 3, "gpu": "gb10"}, "no dense bf16 peak.*--tflops"),
        ({"params": math.nan}, "must be a number above 0"),
        ({"flops": 1e300}, "at most 1e\\+30"),
    ],
)
def test_missing_or_contradictory_options_say_what_to_do(said, complaint):
    with pytest.raises(UsageError, match=complaint):
        sizes(**said)


def test_a_recipe_that_no_law_sizes_says_which_ones_are():
    with pytest.raises(UsageError, match="text/gpt-pretrain"):
        sizes("tabular/xgboost", params=1e9)


def test_counts_are_numbers_with_or_without_a_letter():
    assert [count(text, "--params") for text in ("1e9", "350M", "7b", "1.4T")] == [1e9, 350e6, 7e9, 1.4e12]
    with pytest.raises(UsageError, match="--params 'many'"):
        count("many", "--params")
    assert [short(number) for number in (125e6, 999.9e6, 7e9, 12.0)] == ["125M", "1B", "7B", "12"]


# --- zoo recommend --gpu --hours --memory ---------------------------------------------------------------------------


def test_a_recommendation_knows_the_budget_and_names_what_contradicts_it():
    short_of_time = with_budget(recommend("text", 200_000, task="generation"), Budget(gpu="a100", hours=12))
    assert short_of_time.recipe.name == "text/gpt-pretrain"
    assert "fine-tune under 500M parameters rather than train" in short_of_time.budget["says"]
    assert "the rule is to adapt. The runner-up is text/continued-pretrain." in short_of_time.budget["conflicts"][0]
    assert "conflict" in str(short_of_time)
    enough = with_budget(recommend("text", 200_000, task="generation"), Budget(gpu="h100", gpus=8, hours=72))
    assert enough.as_json()["budget"]["conflicts"] == []
    assert enough.budget["affordable_params"] == pytest.approx(math.sqrt(8 * 72 * 3600 * 989.5e12 * 0.277 / 120))


def test_a_recipe_that_outgrows_the_memory_is_a_conflict():
    little = with_budget(recommend("proteins", 20_000), Budget(memory=2))
    assert "needs about 4 GiB, and 2 are there" in little.budget["conflicts"][0]
    assert with_budget(recommend("proteins", 20_000), Budget(gpu="4090")).budget == {"conflicts": []}


@pytest.mark.parametrize(
    ("said", "complaint"),
    [({"hours": 3.0}, "of which GPU"), ({"memory": -1.0}, "above 0"), ({"gpu": "x1"}, "not in the catalogue")],
)
def test_a_budget_that_nobody_can_have_is_refused(said, complaint):
    with pytest.raises(UsageError, match=complaint):
        with_budget(recommend("proteins", 20_000), Budget(**said))


_SPY = """
import sys
from zoo.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(code, [name for name in ("torch", "numpy", "pandas") if name in sys.modules])
"""


def cli(*arguments):
    return subprocess.run(
        [sys.executable, "-c", _SPY, "plan", "text/gpt-pretrain", *arguments],
        env={**os.environ, "PYTHONPATH": str(_ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip


def test_the_command_line_answers_without_torch_numpy_or_pandas():
    done = cli("--hours", "24", "--gpu", "h100", "--gpus", "8", "--price", "2.5", "--json")
    printed, ended = done.stdout.splitlines()
    assert ended == "0 []"
    found = json.loads(printed)
    assert found["schema_version"] == 1
    assert found["rows"][0]["cost"] == pytest.approx(8 * 24 * 2.5)


def test_the_command_line_refuses_data_beside_a_question_of_size():
    done = cli("--params", "1B", "--data", "x.csv", "--fast")
    assert done.stdout == "2 []\n"
    assert "--data and --fast: a question of size" in done.stderr

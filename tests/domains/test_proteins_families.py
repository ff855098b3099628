"""The two ESM-2 recipes from plan to prediction, on small random weights; and the demo's data."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from domains.contract import Facts, Request
from domains.proteins import data, demo, esm2_embed, esm2_finetune
from domains.shared.proteins.esm2_weights import load_encoder
from trainers.contract import Machine, Plan
from trainers.errors import MissingError, UsageError
from trainers.settings import SETTINGS

FAMILIES = {"embed": esm2_embed, "gradient": esm2_finetune}


def proteins(num=48, seed=0, target="class"):
    """Chains of 5 to 40 residues that begin acidic or basic."""
    rng = np.random.default_rng(seed)
    basic = rng.random(num) < 0.5
    starts = ["K" * 5 if b else "E" * 5 for b in basic]
    chains = [start + "".join(rng.choice(list("ACDFGHILMN"), rng.integers(0, 36))) for start in starts]
    y = np.where(basic, "basic", "acid") if target == "class" else basic * 10.0 + 100 + rng.normal(size=num)
    return data.read(pd.DataFrame({"sequence": chains, "y": y}), Request(target="y")).table


def plan_of(trainer, table, *, options=None, train=None):
    family, task = FAMILIES[trainer], "classification" if isinstance(table.target()[0], str) else "regression"
    chosen = family.Options(**{**family.TINY["options"], **(options or {})})
    settings = SETTINGS[trainer].model_validate({**family.TINY["train"], **(train or {})})
    facts = data.describe(table, task, Request())
    estimates = family.plan(facts, chosen, settings, Machine())
    return Plan(
        *("proteins/x", "proteins", task, family.__name__, chosen.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def agreement(rows, predictions):
    truth, found = rows.target(), predictions.values
    return float(np.mean(truth == found)) if predictions.kind == "label" else -float(np.abs(truth - found).mean())


def quiet_watch(folder):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="accuracy", higher_is_better=True, rank=0, world=1,
        score=agreement,
        log=lambda **event: None, should_stop=lambda: None,
    )  # fmt: skip


@pytest.mark.parametrize("trainer", FAMILIES)
@pytest.mark.parametrize("target", ["class", "number"])
def test_a_recipe_learns_saves_and_answers_the_same_after_loading(trainer, target, tmp_path):
    table = proteins(target=target)
    plan = plan_of(trainer, table, train={"epochs": 12} if trainer == "gradient" else None)
    learner = FAMILIES[trainer].build(plan)
    learner.fit(table, table, quiet_watch(tmp_path))
    answers = learner.predict(table.without_target())
    learner.save(tmp_path / "model")
    again = FAMILIES[trainer].load(Plan.from_json(plan.as_json()), tmp_path / "model").predict(table.without_target())
    if target == "class":
        assert np.mean(answers.values == table.target()) > 0.9
        assert np.array_equal(again.scores, answers.scores)
    else:
        assert np.corrcoef(answers.values, table.target())[0, 1] > 0.8
        assert np.array_equal(again.values, answers.values)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_answers_do_not_depend_on_what_else_is_in_the_batch(precision, tmp_path):
    table = proteins()
    plan = plan_of("gradient", table, train={"precision": precision, "epochs": 1})
    learner = esm2_finetune.build(plan)
    learner.fit(table, None, quiet_watch(tmp_path))
    learner.save(tmp_path / "model")

    def scores(batch):
        other = replace(plan, settings={**plan.settings, "eval_batch_size": batch})
        return esm2_finetune.load(other, tmp_path / "model").predict(table.without_target()).scores

    assert np.abs(scores(1) - scores(16)).max() < 1e-3


def test_embeddings_do_not_depend_on_the_token_budget():
    table = proteins()
    encoder = esm2_embed.build(plan_of("embed", table)).encoder
    alone = np.concatenate([encoder.encode(table.take([i])) for i in range(len(table))])
    assert np.abs(encoder.encode(table) - alone).max() < 1e-5


def test_an_embedding_run_refuses_weights_that_have_changed_since(tmp_path):
    load_encoder("random:2x32").save_pretrained(tmp_path / "weights")
    table = proteins()
    plan = plan_of("embed", table, options={"weights": str(tmp_path / "weights")})
    learner = esm2_embed.build(plan)
    learner.fit(table, None, quiet_watch(tmp_path))
    learner.save(tmp_path / "model")
    assert not list((tmp_path / "model").rglob("*encoder*.safetensors"))
    load_encoder("random:2x32").save_pretrained(tmp_path / "weights")
    with pytest.raises(MissingError, match="not the weights that the run was trained on"):
        esm2_embed.load(plan, tmp_path / "model")


def test_a_finetuned_run_loads_where_its_first_weights_are_gone(tmp_path):
    load_encoder("random:2x32").save_pretrained(tmp_path / "weights")
    table = proteins()
    plan = plan_of("gradient", table, options={"weights": str(tmp_path / "weights")}, train={"epochs": 1})
    learner = esm2_finetune.build(plan)
    learner.fit(table, None, quiet_watch(tmp_path))
    learner.save(tmp_path / "model")
    (tmp_path / "weights").rename(tmp_path / "gone")
    again = esm2_finetune.load(plan, tmp_path / "model").predict(table.without_target())
    assert np.array_equal(again.scores, learner.predict(table.without_target()).scores)


def test_a_plan_counts_cropped_sequences_and_names_random_weights():
    table = proteins()
    num_long = int((table.column("sequence").str.len() > 30).sum())
    for trainer in FAMILIES:
        notes = plan_of(trainer, table, options={"max_residues": 30}).estimates["notes"]
        assert "random weights" in notes[0]
        assert "longer than 30 residues and are cropped" in notes[1]
    facts = data.describe(table, "classification", Request())
    marked = replace(facts, sizes={**facts.sizes, "longer_than_30": num_long})
    assert any(f"{num_long} of 48" in note for note in esm2_embed.length_notes(marked, 30))


@pytest.mark.parametrize("trainer", FAMILIES)
def test_a_plan_without_the_weights_fails_before_any_work(trainer):
    with pytest.raises(MissingError, match="no such file"):
        plan_of(trainer, proteins(), options={"weights": "./nowhere"})


def test_every_parameter_that_is_trained_has_a_role_and_the_head_is_deepest():
    table = proteins()
    learner = esm2_finetune.build(plan_of("gradient", table))
    task = learner.make_task(learner.compute_statistics(table), True)
    roles = task.roles()
    assert sorted(roles) == sorted(name for name, _ in task.model.named_parameters())
    assert max(role.depth for role in roles.values()) == roles["head.weight"].depth == 3
    assert roles["encoder.embeddings.word_embeddings.weight"].depth == 0


def test_the_loss_of_a_batch_is_that_of_its_rows_one_by_one():
    table = proteins(8)
    learner = esm2_finetune.build(plan_of("gradient", table))
    task = learner.make_task(learner.compute_statistics(table), True)
    task.model.eval()
    examples = task.examples(table, None)
    whole = task.loss(task.model, task.draw(examples, []).inputs)["cross_entropy"]
    single = sum(task.loss(task.model, task.draw([example], []).inputs)["cross_entropy"] for example in examples)
    assert whole.item() == pytest.approx(single.item(), rel=1e-5)


def test_the_demo_is_real_peptides_said_to_start_from_random_weights():
    pytest.importorskip("modlamp")
    found = demo.load("peptides")
    reading = data.read(found.data, found.request)
    assert (len(reading.table), reading.task, reading.bad) == (demo.NUM_ROWS, "classification", ())
    assert set(reading.table.target()) == {"antimicrobial", "other"}
    assert "RANDOM" in found.about
    assert "BSD-3" in found.about


def test_an_unknown_demo_is_offered_the_right_one():
    with pytest.raises(UsageError, match="Did you mean peptides"):
        demo.load("peptide")


def test_facts_survive_json():
    facts = data.describe(proteins(), "classification", Request())
    assert Facts.from_json(facts.as_json()) == facts

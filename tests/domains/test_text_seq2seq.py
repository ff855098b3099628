"""text/seq2seq on random weights: the loss is that of transformers, answers end, folders of T5 and BART load."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, PreTrainedTokenizerFast, T5Config

from domains.contract import Request
from domains.shared.tokens import TextTokenizer
from domains.text import parallel, seq2seq
from domains.text.seq2seq_weights import made_tokenizer, roles
from trainers.contract import Machine, Plan
from trainers.errors import DataError, MissingError, UsageError
from trainers.settings import Gradient

FRAME = pd.DataFrame(
    {"source": ["tea please", "bring me some bread", "tea"], "target": ["a cup", "warm bread", "a cup"]}
)


def plan_with(weights: str, **options: object) -> Plan:
    table = parallel.read(FRAME, Request()).table
    facts = parallel.describe(table, "seq2seq", Request())
    values = seq2seq.Options(weights=weights, vocabulary=300, dropout=0.0, **options).model_dump()
    settings = Gradient(precision="fp32").model_dump()
    return Plan("text/seq2seq", "text", "seq2seq", "", values, settings, facts.as_json(), Machine())


def task_of(plan: Plan) -> seq2seq.Seq2SeqTask:
    torch.manual_seed(0)
    fitted = seq2seq._statistics(plan, parallel.read(FRAME, Request()).table)
    return seq2seq.make_task(plan, fitted, True, lambda text: None)


def saved_model(folder, config):
    """A random model in the real format, with a tokenizer of its own."""
    values = made_tokenizer([*FRAME["source"], *FRAME["target"]], 300)
    tokenizer = TextTokenizer.from_json(values)
    config.vocab_size = tokenizer.size
    torch.manual_seed(1)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.tokenizer, pad_token="<pad>", eos_token="</s>").save_pretrained(
        folder
    )
    return folder


ENDS = {"pad_token_id": 0, "eos_token_id": 1}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
BART = {
    "d_model": 32,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 1,
    **{f"{half}_layers": 1 for half in ("encoder", "decoder")},
    **{f"{half}_attention_heads": 2 for half in ("encoder", "decoder")},
    **{f"{half}_ffn_dim": 64 for half in ("encoder", "decoder")},
}
CONFIGS = {"t5": T5Config(**T5, **ENDS), "bart": BartConfig(**BART, **ENDS)}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_loss_of_random_weights_is_that_of_transformers_whatever_the_padding(kind, tmp_path):
    task = task_of(plan_with(str(saved_model(tmp_path, CONFIGS[kind]))))
    task.model.eval()
    rows = parallel.read(FRAME, Request()).table
    examples = task.examples(rows, tmp_path)
    rngs = [np.random.default_rng(i) for i in range(3)]
    batch = task.draw(examples, rngs)
    ours = task.loss(task.model, batch.inputs)["cross_entropy"] / batch.counts["cross_entropy"]
    source, is_source, _, target = batch.inputs
    theirs = task.model(input_ids=source, attention_mask=is_source.long(), labels=target).loss
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    alone = [task.draw([example], rngs[:1]) for example in examples]
    total = sum(task.loss(task.model, each.inputs)["cross_entropy"].item() for each in alone)
    assert total == pytest.approx(ours.item() * batch.counts["cross_entropy"], rel=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_pretrained_tensors_of_random_weights_arrive_and_every_parameter_has_a_role(kind, tmp_path):
    folder = saved_model(tmp_path, CONFIGS[kind])
    network = task_of(plan_with(str(folder))).model
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in network.state_dict().items())
    assert set(roles(network)) == {name for name, _ in network.named_parameters()}


def test_answers_do_not_depend_on_the_other_rows_with_random_weights():
    task = task_of(plan_with("random:1x32", max_target_tokens=8))
    task.model.eval()
    rows = parallel.read(FRAME, Request()).table.without_target()
    together = task.predict(task.model, task.collate(rows)).values.tolist()
    alone = [task.predict(task.model, task.collate(rows.take([i]))).values[0] for i in range(3)]
    assert together == alone


def test_what_is_cropped_is_said():
    plan, said = plan_with("random:1x32", max_source_tokens=4), []
    table = parallel.read(FRAME, Request()).table
    seq2seq.make_task(plan, seq2seq._statistics(plan, table), True, said.append).examples(table, None)
    lengths = [
        len(TextTokenizer.from_json(seq2seq._statistics(plan, table)).encode([text], 99).numbers[0])
        for text in FRAME["source"]
    ]
    assert said[0].startswith(f"{sum(length > 4 for length in lengths)} of 3 source texts are longer than 4 tokens")


def test_weights_that_are_missing_or_no_encoder_decoder_are_refused(tmp_path):
    with pytest.raises(MissingError, match="no such file or folder"):
        task_of(plan_with(str(tmp_path / "nowhere")))
    saved_model(tmp_path, CONFIGS["t5"])
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match="no encoder-decoder"):
        task_of(plan_with(str(tmp_path)))


def test_more_tokens_than_positions_of_random_bart_are_refused(tmp_path):
    folder = saved_model(tmp_path, CONFIGS["bart"])
    plan = plan_with(str(folder))
    options = seq2seq.Options(weights=str(folder), max_source_tokens=5000)
    facts = parallel.describe(parallel.read(FRAME, Request()).table, "seq2seq", Request())
    with pytest.raises(UsageError, match=r"options\.max_source_tokens=1024"):
        seq2seq.plan(facts, options, Gradient.model_validate(plan.settings), Machine())

"""text/lora-finetune and text/full-finetune on small random models, compared with transformers and peft themselves."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from domains.contract import Request
from domains.shared.weights import resolve
from domains.text import causal, causal_task, chats, pairs
from domains.text import causal_weights as languages
from domains.text.causal_tokens import Scribe, padded
from trainers.contract import Machine, Plan
from trainers.errors import DataError, UsageError
from trainers.settings import Gradient

ASK = Request(task="generation")
TEMPLATE = (
    "{% for m in messages %}<start>{{ m['role'] }}\n{{ m['content'] }}<stop>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
KINDS = {
    "llama": {**SIZES, "num_key_value_heads": 1},
    "gemma3_text": {**SIZES, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8},
    "gemma2": {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 2.0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "granite": {**SIZES, "num_key_value_heads": 2, "logits_scaling": 4.0},
}


def rows(num=40, seed=0):
    rng = np.random.default_rng(seed)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "slept"]
    made = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(num)]
    frame = pd.DataFrame({"prompt": [f"{i} {text}" for i, text in enumerate(made)], "completion": made})
    return pairs.read(frame, ASK).table


def tokenizer(template=""):
    table = rows()
    text = languages.made_tokenizer([*table.column("prompt"), *table.column("answer")])
    made = languages.tokenizer_of(text)
    if template:
        made.add_special_tokens({"additional_special_tokens": ["<start>", "<stop>"]})
        made.chat_template = template
    return made


def saved(folder, kind="llama", template=""):
    """A folder as `save_pretrained` writes it, random and wide, so that scores differ."""
    made = tokenizer(template)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(made),
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        **KINDS[kind],
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


def plan_of(table, weights, *, train=None, **options):
    chosen = causal.Options(**{**causal.TINY["options"], "weights": str(weights), **options})
    settings = Gradient.model_validate({**causal.TINY["train"], "epochs": 2, **(train or {})})
    facts = pairs.describe(table, "generation", ASK)
    estimates = causal.plan(facts, chosen, settings, Machine())
    return Plan(
        *("text/x", "text", "generation", causal.__name__, chosen.model_dump(mode="json"), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def quiet_watch(folder, told=None):
    def score(table, found):
        return float(np.nansum(found.values) / table.target().sum())

    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="bits_per_byte", higher_is_better=False, rank=0, world=1,
        score=score, log=lambda **event: told is not None and told.append(event), should_stop=lambda: None,
    )  # fmt: skip


def fitted(plan, folder, told=None):
    table, learner = rows(), causal.build(plan)
    learner.fit(table.take(range(30)), table.take(range(30, 40)), quiet_watch(folder, told))
    return learner


def task_of(learner):
    return learner.inner.task


def answer_nats(model, script):
    """By transformers' own scores, one row at a time."""
    numbers = torch.from_numpy(script.numbers.astype(np.int64))[None]
    scores = model(input_ids=numbers).logits[0, :-1].float()
    nats = functional.cross_entropy(scores, numbers[0, 1:], reduction="none")
    return nats[torch.from_numpy(script.is_answer[1:])].sum()


def bits_of(model, script):
    with torch.no_grad():
        return float(answer_nats(model, script)) / np.log(2)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_cost_what_the_scores_of_transformers_say_and_gradients_agree(kind, packs, tmp_path, monkeypatch):
    folder = saved(tmp_path, kind)
    monkeypatch.setattr(causal_task, "SCORES_AT_ONCE", 5 * 300)
    language = languages.load_language(str(folder), languages.read_config(str(folder)))
    causal_task.check_scores(language, kind)
    scribe = Scribe(tokenizer(), "\n", is_chat=False)
    scripts = [scribe.answered(*pair) for pair in zip(rows(6).column("prompt"), rows(6).column("answer"), strict=True)]
    numbers, is_token = padded([each.numbers for each in scripts], scribe.pad)
    is_answer, _ = padded([each.is_answer for each in scripts], 0)
    if packs:
        causal_task.check_packing(language, kind, "false")
    ours = causal_task.Answering(language, packs=packs)(numbers, is_token, is_answer.bool())
    ours.sum().backward()
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    expected = torch.stack([answer_nats(theirs, script) for script in scripts])
    expected.sum().backward()
    assert torch.allclose(ours, expected, rtol=1e-4)
    for (name, a), (_, b) in zip(language.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-3 * float(b.grad.abs().max())), name


def test_a_model_with_a_state_cannot_have_its_rows_in_one_line():
    language = languages.empty_language(languages.mamba_config(2, 32, 300))
    with pytest.raises(UsageError, match=r"does not keep texts apart.*options\.packing=false"):
        causal_task.check_packing(language, "mamba", "false")


def test_a_resumed_run_that_packs_rows_asks_nothing_of_weights_that_are_yet_to_come():
    plan = plan_of(rows(), "random:2x32", method="all", packing=True)
    learner = causal.build(plan).inner
    task = learner._made(learner.compute_statistics(rows()), pretrained=False)
    assert task.model.packs


def test_a_model_with_scores_of_its_own_making_is_refused(llama):
    language = languages.load_language(str(llama), languages.read_config(str(llama)))
    language.lm_head.register_forward_hook(lambda module, inputs, out: out)
    forward = language.forward
    language.forward = lambda **inputs: SimpleNamespace(logits=2 * forward(**inputs).logits)
    with pytest.raises(DataError, match="in a way of its own"):
        causal_task.check_scores(language, "x")


def test_in_bfloat16_later_tokens_do_not_change_earlier_states(llama):
    language = languages.load_language(str(llama), languages.read_config(str(llama))).bfloat16()
    numbers = torch.randint(5, 200, (1, 12))
    other = numbers.clone()
    other[:, 6:] += 1
    for each in (language, language.bfloat16()):
        states = [
            causal_task.last_states(each, these, torch.ones_like(these, dtype=torch.bool)) for these in (numbers, other)
        ]
        assert torch.equal(states[0][:, :6], states[1][:, :6])
        assert not torch.equal(states[0][:, 6:], states[1][:, 6:])


def test_only_the_answer_and_its_end_are_learned_even_where_padding_is_the_same_token():
    made = tokenizer()
    made.pad_token = made.eos_token
    scribe = Scribe(made, "\n", is_chat=False)
    script = scribe.answered("the cat", "sat")
    assert scribe.pad == scribe.end == made.eos_token_id
    assert made.decode(script.numbers[~script.is_answer]) == "the cat\n"
    assert made.decode(script.numbers[script.is_answer]) == f"sat{made.eos_token}"
    _, is_token = padded([script.numbers, script.numbers[:2]], scribe.pad)
    assert is_token.sum() == len(script.numbers) + 2


def test_of_a_chat_the_template_of_the_tokenizer_decides_and_only_answers_are_learned():
    made = tokenizer(TEMPLATE)
    scribe = Scribe(made, "\n", is_chat=True)
    prompt = chats.as_text(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    )
    last, every = scribe.answered(prompt, "d"), scribe.answered(prompt, "d", every=True)
    assert made.decode(last.numbers[last.is_answer]) == "d<stop>\n"
    assert made.decode(every.numbers[every.is_answer]) == "b<stop>\nd<stop>\n"
    whole = "<start>user\na<stop>\n<start>assistant\nb<stop>\n<start>user\nc<stop>\n<start>assistant\nd<stop>\n"
    assert made.decode(last.numbers) == whole
    assert scribe.ends() == sorted([made.eos_token_id, made.convert_tokens_to_ids("<stop>")])
    single = Scribe(made, "\n", is_chat=False).answered("a", "b")
    assert made.decode(single.numbers) == "<start>user\na<stop>\n<start>assistant\nb<stop>\n"


def test_rows_whose_prompt_fills_the_window_are_told_and_not_trained_on(llama, tmp_path):
    told = []
    table = rows()
    scribe = Scribe(tokenizer(), "\n", is_chat=False)
    lengths = np.array([len(scribe.asked(prompt)) for prompt in table.column("prompt")[:30]])
    learner = fitted(plan_of(table, llama, max_tokens=8), tmp_path, told)
    num = int((lengths >= 8).sum())
    assert 0 < num < 30
    assert any(event.get("text", "").startswith(f"{num} of 30 training rows are not trained on") for event in told)
    found = learner.predict(table.without_target())
    assert any(found.problems)
    assert np.isnan(found.values[[bool(problem) for problem in found.problems]]).all()
    with pytest.raises(DataError, match="nothing can be learned"):
        fitted(plan_of(table, llama, max_tokens=8, separator="\n" * 20), tmp_path / "b")


def test_adapters_learn_base_weights_stay_and_snapshots_hold_adapters_alone(llama, tmp_path):
    before = resolve(str(llama)).sha256
    table = rows()
    learner = fitted(plan_of(table, llama), tmp_path)
    assert resolve(str(llama)).sha256 == before
    stored, language = load_file(llama / "model.safetensors"), task_of(learner).model.language
    inner = {name.replace(".base_layer", ""): value for name, value in causal_task.bare(language).state_dict().items()}
    assert all(torch.equal(inner[name], value) for name, value in stored.items())
    resumed = learner.inner._made(learner.inner.statistics, pretrained=False).model.language
    assert all(
        torch.equal(value, stored[name.replace(".base_layer", "")])
        for name, value in causal_task.bare(resumed).state_dict().items()
        if name.replace(".base_layer", "") in stored
    )
    snapshot = load_file(sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1] / "model.safetensors")
    assert snapshot
    assert all("lora_" in name for name in snapshot)
    untrained = causal.build(plan_of(table, llama)).inner
    untrained.task = untrained.make_task(learner.inner.statistics, True)
    bits = [each.predict(table.without_target()).values.sum() for each in (untrained, learner)]
    assert bits[1] < 0.9 * bits[0]


def test_saved_adapters_are_what_peft_loads_and_merged_weights_answer_the_same(llama, tmp_path):
    from peft import PeftModel

    table = rows()
    plan = plan_of(table, llama)
    learner = fitted(plan, tmp_path)
    run = tmp_path / "done"
    learner.save(run / "model")
    assert {path.suffix for path in (run / "model").rglob("*") if path.is_file()} == {".json", ".safetensors"}
    expected = learner.predict(table.without_target()).values
    again = causal.load(plan, run / "model").predict(table.without_target()).values
    assert np.allclose(again, expected, rtol=1e-6)
    (run / "plan.json").write_text(json.dumps(plan.as_json()))
    merged = AutoModelForCausalLM.from_pretrained(causal.export_merged(run, tmp_path / "merged"))
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), run / "model" / "adapter")
    scribe = task_of(learner).scribe
    for row in range(5):
        script = scribe.answered(table.column("prompt")[row], table.column("answer")[row])
        for model in (merged, beside):
            assert bits_of(model, script) == pytest.approx(expected[row], rel=1e-4)
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "merged").eos_token == languages.END


def test_changed_base_weights_are_refused_when_a_run_is_loaded(tmp_path):
    folder, table = saved(tmp_path / "base"), rows()
    plan = plan_of(table, folder)
    fitted(plan, tmp_path).save(tmp_path / "model")
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    with pytest.raises(Exception, match="not the weights that the run was trained on"):
        causal.load(plan, tmp_path / "model")


def test_all_weights_train_and_are_kept_as_a_folder_of_transformers_that_needs_no_other(tmp_path):
    folder, table = saved(tmp_path / "base"), rows()
    plan = plan_of(table, folder, method="all", train={"lr": 1e-3})
    learner = fitted(plan, tmp_path)
    learner.save(tmp_path / "model")
    expected = learner.predict(table.without_target()).values
    folder.rename(tmp_path / "gone")
    assert np.allclose(
        causal.load(plan, tmp_path / "model").predict(table.without_target()).values, expected, rtol=1e-6
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model" / "weights")
    script = task_of(learner).scribe.answered(table.column("prompt")[0], table.column("answer")[0])
    assert bits_of(theirs, script) == pytest.approx(expected[0], rel=1e-4)


def test_answers_are_written_as_transformers_writes_each_prompt_alone(llama, tmp_path):
    table = rows(8)
    learner = causal.build(plan_of(table, llama)).inner
    learner.task = learner.make_task({"weights": languages.reference(str(llama)), "tokenizer": ""}, True)
    facts = pairs.describe(table, "generation", ASK)
    asked = pairs.read(pd.DataFrame({"prompt": table.column("prompt")}), Request(facts=facts)).table
    found = learner.predict(asked)
    assert found.kind == "text"
    theirs, scribe = AutoModelForCausalLM.from_pretrained(llama), learner.task.scribe
    for prompt, text in zip(table.column("prompt"), found.values, strict=True):
        numbers = torch.tensor([scribe.asked(prompt)])
        written = theirs.generate(numbers, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=1)
        assert text == scribe.text(written[0, numbers.shape[1] :].tolist())


def test_estimated_parameters_are_those_of_the_model(llama, tmp_path):
    plan = plan_of(rows(), llama)
    named = dict(task_of(fitted(plan, tmp_path)).model.named_parameters())
    assert plan.estimates["num_parameters"] == sum(each.numel() for each in named.values())
    assert plan.estimates["num_trained"] == sum(each.numel() for name, each in named.items() if "lora_" in name)


def test_four_bits_on_a_cpu_unknown_layers_and_models_that_write_nothing_are_refused_with_the_reason(llama, tmp_path):
    with pytest.raises(UsageError, match=r"kernels are for CUDA only \(device cpu\)"):
        plan_of(rows(), llama, base="4bit")
    with pytest.raises(UsageError, match=r"options.targets=\['nonsense'\]"):
        plan_of(rows(), llama, targets=("nonsense",))
    for kind, words in (("bert", "reads both ways"), ("t5", "no causal language model")):
        config = {"model_type": kind, "is_encoder_decoder": kind == "t5"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
        with pytest.raises(DataError, match=words):
            plan_of(rows(), tmp_path)

"""Hostile texts, proteins, genes and molecules; see benchmarks/cases.py."""

import sys
from collections import defaultdict

from case_bench import Bench, Check, largest_difference, lines_of, numbers_of

TEXT, PROTEIN, DNA, MOLECULE = (
    *("text/encoder-classify", "proteins/esm2-finetune", "genomics/scratch"),
    "molecules/gnn-scratch",
)
NEW_TOKENS = 64


def blank_cells(bench: Bench) -> None:
    data, label = bench.case / "train.csv", ("--target", "label", "--epochs", "1")
    ended = bench.train(TEXT, data, *label)
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["line 6:", "line 12:", "line 18:"], absent=["line 21:"])
    bench.see_code(bench.train(TEXT, data, *label, "--skip-bad"), 0, "--skip-bad")
    _, answers = bench.predict(data)
    bench.see([line["id"] for line in answers] == [str(i) for i in range(24)], f"{len(answers)} rows in order")
    empty = [i for i, line in enumerate(answers, start=1) if not line["prediction"] and line["problem"]]
    bench.see(empty == [5, 11, 17], f"rows without an answer, with a reason: {empty}")


def other_encoding(bench: Bench) -> None:
    data, label = bench.case / "train.csv", ("--target", "label", "--epochs", "1")
    ended = bench.train(TEXT, data, *label)
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["train.csv line 2", "byte 0x", "--encoding cp1252"])
    bench.see_code(bench.train(TEXT, data, *label, "--encoding", "cp1252"), 0, "--encoding cp1252")
    rows = bench.json("data.json")["num_rows_used"]
    bench.see(rows == 30, f"{rows} rows")


def broken_lines(bench: Bench) -> None:
    data = bench.case / "in.csv"
    ended = bench.train(TEXT, data, "--target", "label", "--epochs", "1")
    bench.see_code(ended, 0, "train")
    ended, answers = bench.predict(data)
    bench.see([line["id"] for line in answers] == [str(i) for i in range(24)], f"{len(answers)} rows, ids in order")
    bench.see_named(ended, ["zero byte", "line"])


def odd_unicode(bench: Bench) -> None:
    data = bench.case / "train.csv"
    bench.see_code(bench.train(TEXT, data, "--target", "label", "--epochs", "1"), 0, "train")
    losses = [event["loss"] for event in bench.events() if "loss" in event]  # NaN would have been refused as no JSON
    bench.see(bool(losses) and None not in losses, f"{len(losses)} losses, all finite")
    _, answers = bench.predict(data)
    bench.see([line["id"] for line in answers] == [str(i) for i in range(20)], f"{len(answers)} rows, ids in order")


def end_is_learned(bench: Bench) -> None:
    sets = ("train.lr=0.005", f"options.max_new_tokens={NEW_TOKENS}")
    ended = bench.train("text/full-finetune", bench.case / "train.jsonl", "--epochs", "30", sets=sets)
    bench.see_code(ended, 0, "train")
    _, answers = bench.predict(bench.case / "prompts.jsonl")
    lengths = [len(line["prediction"]) for line in answers]
    # A token is at least one byte; right answers are one or two digits.
    share = sum(length < NEW_TOKENS / 4 for length in lengths) / max(1, len(lengths))
    bench.see(share >= 0.9, f"{share:.0%} of {len(lengths)} answers end before {NEW_TOKENS // 4} characters")


def stops_and_gaps(bench: Bench) -> None:
    ended = bench.train(PROTEIN, bench.case / "train.csv", "--target", "label", "--epochs", "1")
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["line 8", "line 10", "line 13"], absent=["line 4 ", "line 5 ", "line 4:", "line 5:"])
    ended = bench.train(PROTEIN, bench.case / "train.csv", "--target", "label", "--epochs", "1", "--skip-bad")
    bench.see_code(ended, 0, "--skip-bad")
    notices = " ".join(bench.json("data.json")["notices"])
    bench.see("*" in notices or "stop" in notices, "notice of the stops that were taken off")


def odd_residues(bench: Bench) -> None:
    bench.see_code(bench.train(PROTEIN, bench.case / "train.csv", "--target", "label", "--epochs", "1"), 0, "train")
    ended, answers = bench.predict(bench.case / "odd.csv")
    bench.see([line["id"] for line in answers] == [f"o{i}" for i in range(8)], f"{len(answers)} rows in order")
    reasons = [line["id"] for line in answers if line["problem"]]
    bench.see(reasons == ["o6", "o7"], f"with a reason: {reasons}")
    said = " ".join(ended.err.split())
    bench.see(all(letter in said for letter in "XUBZOJ"), "the unusual letters are counted in a notice")


def very_long(bench: Bench) -> None:
    sets = ("options.max_residues=1022", "train.micro_batch_tokens=4096")
    ended = bench.train(PROTEIN, bench.case / "train.csv", "--target", "label", "--epochs", "1", sets=sets)
    bench.see_code(ended, 0, "train")
    said = ended.err + (bench.work / "run/README.md").read_text()
    bench.see("6 of 12" in said, "6 of 12 named" if "6 of 12" in said else "6 of 12 is not said")
    bench.see(ended.peak_bytes < 2 << 30, f"peak {ended.peak_bytes / 2**20:.0f} MiB")


def fasta_dialects(bench: Bench) -> None:
    labels = ("--labels", bench.case / "labels.csv", "--target", "label", "--epochs", "1")
    ended = bench.train(PROTEIN, bench.case / "seqs.fasta", *labels)
    bench.see_code(ended, 0, "train")
    ids = sorted(name for part in bench.json("split.json")["ids"].values() for name in part)
    bench.see(ids == ["s1", "s2", "s3", "s4"], f"ids {ids}")
    program = (
        "import sys; from pathlib import Path; from domains.shared.fasta import read_fasta\n"
        "print([len(record.text) for record in read_fasta(Path(sys.argv[1]))])"
    )
    lengths = bench.run(sys.executable, "-c", program, bench.case / "seqs.fasta").out.strip()
    bench.see(lengths == "[30, 30, 45, 30]", f"lengths {lengths}")
    ended = bench.train(PROTEIN, bench.case / "bad.fasta", *labels, run="bad")
    bench.see_code(ended, 2, "bad.fasta")
    bench.see_named(ended, ["'dup'", "empty"])


def batches_do_not_matter(bench: Bench) -> None:
    bench.see_code(bench.train(PROTEIN, bench.case / "train.csv", "--target", "label", "--epochs", "2"), 0, "train")
    found = [bench.predict(bench.case / "test.csv", "--set", f"train.eval_batch_size={n}")[1] for n in (1, 16)]
    far = largest_difference(*map(numbers_of, found))
    bench.see(far < 1e-3, f"{len(found[0])} rows differ by {far:g}")


def missing_targets(bench: Bench) -> None:
    data = bench.case / "train.csv"
    ended = bench.train(MOLECULE, data, "--target", "t1,t2,t3", "--epochs", "5", "--split", "random")
    bench.see_code(ended, 0, "train")
    bench.see_named(ended, ["t1 30", "t2 15", "t3 3"])
    losses = [event["loss"] for event in bench.events() if "loss" in event]  # NaN is no JSON
    bench.see(bool(losses) and None not in losses, f"{len(losses)} losses, all finite")
    split, rows = bench.json("split.json")["ids"], lines_of(data)
    for part in ("test", "valid"):
        known = sum(bool(rows[int(i)]["t3"]) for i in split[part])
        value = bench.json("metrics.json")[part]["rmse_t3"]["value"]
        bench.see((value is None) == (known == 0), f"t3 in {part}: {known} known, score {value}")


def salts(bench: Bench) -> None:
    ended = bench.train(MOLECULE, bench.case / "train.csv", "--target", "y", "--epochs", "2")
    bench.see_code(ended, 0, "train")
    used = bench.json("data.json")["num_rows_used"]
    bench.see(used == 14, f"{used} rows used")
    bench.see_named(ended, ["fragments", "kept"])
    bench.see("fragments" in " ".join(bench.json("data.json")["notices"]), "the policy is recorded in data.json")


def copies_across(bench: Bench) -> None:
    from rdkit import Chem

    data = bench.case / "train.csv"
    ended = bench.train(MOLECULE, data, "--target", "y", "--task", "classification", "--epochs", "10")
    bench.see_code(ended, 0, "train")
    rows, parts = lines_of(data), defaultdict(set)
    for part, ids in bench.json("split.json")["ids"].items():
        for i in ids:
            parts[Chem.CanonSmiles(rows[int(i)]["smiles"])].add(part)
    bench.see(all(len(found) == 1 for found in parts.values()), f"{len(parts)} compounds, each in one part")
    labels = defaultdict(set)
    for row in rows:
        labels[Chem.CanonSmiles(row["smiles"])].add(row["y"])
    num = sum(len(found) > 1 for found in labels.values())
    bench.see(f"{num} molecules" in ended.err and "line" in ended.err, f"{num} compounds with two labels are reported")
    auc = bench.json("metrics.json")["test"]["auc"]
    low, high = (auc[name] if auc[name] is not None else auc["value"] for name in ("low", "high"))
    bench.see(
        auc["value"] is None or low <= 0.5 <= high or auc["value"] < 0.8, f"test AUC {auc['value']} ({low}-{high})"
    )


def rare_atoms(bench: Bench) -> None:
    bench.see_code(bench.train(MOLECULE, bench.case / "train.csv", "--target", "y", "--epochs", "1"), 0, "train")
    ended, answers = bench.predict(bench.case / "test.csv")
    bench.see([line["id"] for line in answers] == [str(i) for i in range(12)], f"{len(answers)} rows in order")
    bench.see_named(ended, ["U", "Fe", "Au", "radical", "2H", "13C", "line"])
    bench.see(bool(answers[6]["problem"]) and not answers[6]["prediction"], f"row 6: {answers[6]['problem']}")
    flagged = bool(answers[4]["problem"]) or "wildcard" in ended.err or "*" in ended.err
    bench.see(flagged, f"row 4 (*C) is flagged: {answers[4]['problem'] or 'in a notice'}")


def stereo(bench: Bench) -> None:
    data, arguments = bench.case / "train.csv", ("--target", "y", "--task", "classification", "--epochs", "60")
    # What is asked is whether isomers can be told apart at all, not which snapshot is best on other molecules.
    ended = bench.train(MOLECULE, data, *arguments, sets=("train.keep=last",))
    bench.see_code(ended, 0, "train")
    _, answers = bench.predict(data)
    truth, split = lines_of(data), bench.json("split.json")["ids"]["train"]
    right = sum(answers[int(i)]["prediction"] == truth[int(i)]["y"] for i in split) / len(split)
    said = "stereo" in ended.err
    bench.see(said or right > 0.9, f"accuracy on training rows {right:.2f}; warned of isomers: {said}")


def lower_case(bench: Bench) -> None:
    _twins(bench, "lower")


def rna(bench: Bench) -> None:
    _twins(bench, "U")


def _twins(bench: Bench, notice: str) -> None:
    bench.see_code(bench.train(DNA, bench.case / "train.csv", "--target", "label", "--epochs", "2"), 0, "train")
    ended, answers = bench.predict(bench.case / "twins.csv")
    values = numbers_of(answers)
    far = max(largest_difference([values[0]], [other]) for other in values[1:])
    bench.see(len(answers) == 3 and far < 1e-6, f"{len(answers)} twins differ by {far:g}")
    bench.see_named(ended, [notice])


def both_strands(bench: Bench) -> None:
    ended = bench.train(DNA, bench.case / "train.csv", "--target", "label", "--epochs", "5")
    bench.see_code(ended, 0, "train")
    parts = defaultdict(set)
    for part, ids in bench.json("split.json")["ids"].items():
        for name in ids:
            parts[name[:-1]].add(part)
    bench.see(all(len(found) == 1 for found in parts.values()), f"{len(parts)} loci, each in one part")
    said = ended.err + (bench.work / "run/split.json").read_text()
    bench.see("40" in said and "reverse" in said, "40 reverse-complement pairs are counted")
    accuracy = bench.json("metrics.json")["test"]["accuracy"]
    low, high = (accuracy[name] if accuracy[name] is not None else accuracy["value"] for name in ("low", "high"))
    bench.see(low <= 0.5 <= high or abs(accuracy["value"] - 0.5) < 0.3, f"test accuracy {accuracy['value']:.2f}")


def reads(bench: Bench) -> None:
    bench.see_code(bench.train(DNA, bench.case / "train.csv", "--target", "label", "--epochs", "1"), 0, "train")
    names = ("lf.fastq", "crlf.fastq", "reads.fastq.gz")
    found = [bench.predict(bench.case / name)[1] for name in names]
    bench.see(
        found[0] == found[1] == found[2] and len(found[0]) == 2, f"{[len(each) for each in found]} reads, all equal"
    )
    program = (
        "import sys; from pathlib import Path; from domains.contract import Request; from domains.genomics import data\n"
        "from domains.contract import Facts; import json\n"
        "facts = Facts.from_json(json.load(open(sys.argv[1]))['facts'])\n"
        "for name in sys.argv[2:]: print(sum(map(len, data.read(name, Request(facts=facts)).table.column('sequence'))))"
    )
    files = [bench.case / name for name in names]
    bases = bench.run(sys.executable, "-c", program, bench.work / "run/plan.json", *files).out.split()
    bench.see(bases == ["40", "40", "40"], f"bases {', '.join(bases)}")
    ended, _ = bench.predict(bench.case / "broken.fastq")
    bench.see_code(ended, 2, "broken.fastq")
    bench.see_named(ended, ["r1"])


CHECKS: dict[str, Check] = {
    "text/01-blank-and-none-cells": blank_cells,
    "text/02-latin1-file": other_encoding,
    "text/03-nul-cr-u2028": broken_lines,
    "text/04-quotes-newlines-emoji": odd_unicode,
    "text/06-eos-never-learned": end_is_learned,
    "proteins/02-stops-and-gaps": stops_and_gaps,
    "proteins/03-ambiguous-residues": odd_residues,
    "proteins/04-very-long": very_long,
    "proteins/05-fasta-crlf-mess": fasta_dialects,
    "proteins/07-pooling-and-batch": batches_do_not_matter,
    "molecules/02-nan-multitask": missing_targets,
    "molecules/03-salts-and-single-atoms": salts,
    "molecules/05-duplicate-leak": copies_across,
    "molecules/06-rare-atoms": rare_atoms,
    "molecules/07-stereo-ignored": stereo,
    "genomics/01-soft-masked-lowercase": lower_case,
    "genomics/03-rna-u": rna,
    "genomics/04-reverse-complement-leak": both_strands,
    "genomics/05-crlf-fastq-gz": reads,
}

"""Genomics as a data type: letters, strands, files, splits that keep both strands together, and the k-mer rival."""

from __future__ import annotations

import gzip
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from domains.contract import Request
from domains.genomics import data, similarity
from domains.genomics.baselines import GappedKmerModel, kmer_counts
from domains.genomics.bases import CODES, cleaned, looks_like_dna, one_strand, reverse_complement, shares
from domains.splits import make_split
from trainers.errors import DataError

PAIRS = {"A": "T", "C": "G", "G": "C", "T": "A"}


def random_dna(num, length, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACGT"), length)) for _ in range(num)]


def read(frame, **request):
    return data.read(frame, Request(target="y", **request))


def test_the_complement_of_a_code_stands_for_the_complements_of_its_bases():
    for code, bases in CODES.items():
        assert set(CODES[reverse_complement(code)]) == {PAIRS[base] for base in bases}
    assert reverse_complement("AACGN") == "NCGTT"
    assert one_strand("AACGN") == one_strand("NCGTT")


def test_shares_of_the_other_strand_are_the_shares_read_backwards():
    sequence = "ACGTNRYSWKMBDHV"
    assert np.array_equal(shares(reverse_complement(sequence)), shares(sequence)[::-1, ::-1])
    assert np.allclose(shares(sequence).sum(axis=1), 1)


def test_lower_case_u_and_spaces_are_read_and_said():
    found = cleaned(["acGu", "AC GT", "ACGR"])
    assert found.sequences == ["ACGT", "ACGT", "ACGR"]
    said = " ".join(found.notices)
    assert "25.0% of the bases are lower case" in said
    assert "1 sequence with U (RNA)" in said
    assert "R 1" in said


@pytest.mark.parametrize(
    ("text", "reason"), [("", "no sequence"), (None, "no sequence"), ("AC-GT", "'-' at base 3"), ("NNNN", "ambiguous"),
                         ("ACGE", "'E' at base 4")],
)  # fmt: skip
def test_what_is_no_dna_is_listed_with_its_reason(text, reason):
    frame = pd.DataFrame({"sequence": ["ACGTACGTAC", text, *random_dna(10, 20)], "y": [0, 1] * 6})
    reading = read(frame)
    assert len(reading.table) == 12
    assert [bad.position for bad in reading.bad] == [1]
    assert reason in reading.bad[0].reason


def test_proteins_are_not_taken_for_dna():
    assert looks_like_dna("ACGTNNACGU")
    assert not looks_like_dna("MKVRGSWYHHHHHH")


def test_a_fasta_file_gives_labels_from_its_headers_or_from_a_table(tmp_path):
    (tmp_path / "x.fa").write_text(">a y=1\r\nACGTAC\r\nGTT\r\n>b y=0\r\nTTTTGA\r\n")
    reading = data.read(tmp_path / "x.fa", Request(target="y", task="classification"))
    assert reading.table.column("sequence").tolist() == ["ACGTACGTT", "TTTTGA"]
    assert reading.table.target().tolist() == ["1", "0"]
    (tmp_path / "labels.csv").write_text("id,kind\nb,x\na,y\n")
    reading = data.read(tmp_path / "x.fa", Request(target="kind", labels=str(tmp_path / "labels.csv")))
    assert reading.table.target().tolist() == ["y", "x"]


def test_reads_are_the_same_with_any_line_ends_and_packed(tmp_path):
    text = "@r1 more\nACGTACGTAC\n+\nIIIIIIIIII\n@r2\nTTGCAACGTA\n+r2\n@@@@@@@@@@\n"
    facts = data.describe(
        read(pd.DataFrame({"sequence": random_dna(4, 20), "y": list("aabb")})).table, "classification", Request()
    )
    (tmp_path / "lf.fastq").write_bytes(text.encode())
    (tmp_path / "crlf.fq").write_bytes(text.replace("\n", "\r\n").encode())
    (tmp_path / "packed.fastq.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("lf.fastq", "crlf.fq", "packed.fastq.gz"):
        table = data.read(tmp_path / name, Request(facts=facts)).table
        assert table.column("sequence").tolist() == ["ACGTACGTAC", "TTGCAACGTA"]
        assert list(table.ids) == ["r1", "r2"]
    (tmp_path / "broken.fastq").write_text(text.replace("IIIIIIIIII", "IIIIIIIII"))
    with pytest.raises(DataError, match=r"line 1 \(read 'r1'\): 10 bases but 9 qualities"):
        data.read(tmp_path / "broken.fastq", Request(facts=facts))


def test_a_sequence_its_copy_and_its_other_strand_never_stand_on_two_sides():
    chains = random_dna(60, 80)
    rows = [chain for each in chains for chain in (each, reverse_complement(each), each.lower())]
    frame = pd.DataFrame({"sequence": rows, "y": np.random.default_rng(1).integers(0, 2, 180)})
    reading = read(frame)
    assert any("60 pairs of a sequence and its reverse complement" in text for text in reading.notices)
    for fast in (True, False):
        keys = data.keys(reading.table, "classification", Request(), fast=fast)
        split = make_split(keys, 180, seed=0)
        parts = [set(np.asarray(part) // 3) for part in (split.train, split.valid, split.test)]
        assert all(parts)
        assert not any(one & other for one, other in combinations(parts, 2))


def test_overlapping_windows_of_a_genome_are_one_group_on_either_strand():
    genome = random_dna(1, 600, seed=3)[0]
    windows = [genome[at : at + 100] for at in (0, 50)] + [reverse_complement(genome[90:190]), genome[400:500]]
    group = similarity.groups(similarity.nearness(windows))
    assert group[0] == group[1] == group[2] != group[3]


def test_nearness_is_the_share_of_common_kmers():
    one = random_dna(1, 100, seed=5)[0]
    other = one[50:] + random_dna(1, 50, seed=6)[0]

    def kmers(sequence):
        return {one_strand(sequence[i : i + similarity.K]) for i in range(len(sequence) - similarity.K + 1)}

    expected = len(kmers(one) & kmers(other)) / min(len(kmers(one)), len(kmers(other)))
    assert similarity.nearness([one, other])[0, 1] == pytest.approx(expected)


def test_gapped_kmers_count_both_strands_alike_and_match_a_plain_count():
    sequence = "ACGTTGCANNACGATTAC"
    assert abs(kmer_counts([sequence]) - kmer_counts([reverse_complement(sequence)])).max() < 1e-7
    counts = {}
    for strand in (sequence, reverse_complement(sequence)):
        for rest in combinations(range(1, 8), 5):
            for at in range(len(strand) - rest[-1]):
                word = "".join(strand[at + place] for place in (0, *rest))
                if "N" not in word:
                    counts[(rest, word)] = counts.get((rest, word), 0) + 1
    expected = np.sort(list(counts.values())) / np.linalg.norm(list(counts.values()))
    assert np.allclose(np.sort(kmer_counts([sequence]).data), expected, atol=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_rival_finds_a_planted_motif_on_either_strand(task):
    rng = np.random.default_rng(0)
    has = rng.random(300) < 0.5
    chains = random_dna(300, 60, seed=2)
    chains = [c[:20] + "CCACNAGGTGGC".replace("N", c[0]) + c[32:] if h else c for c, h in zip(chains, has, strict=True)]
    chains = [reverse_complement(c) if i % 2 else c for i, c in enumerate(chains)]
    target = has.astype(str) if task == "classification" else has * 2.0 + 5
    model = GappedKmerModel(task).fit(chains[:200], target[:200])
    scores = model.predict_proba(chains[200:])[:, 1] if task == "classification" else model.predict(chains[200:])
    assert roc_auc_score(has[200:], scores) > 0.95

"""BED: places cut out of a genome, both strands, what is wrong with a place, and overlapping places in one part."""

from __future__ import annotations

import os

import numpy as np
import pytest

import zoo
from domains.contract import Request
from domains.genomics import bed, data
from domains.splits import make_split
from trainers.errors import DataError, UsageError

OTHER = {"A": "T", "C": "G", "G": "C", "T": "A"}


@pytest.fixture
def genome(tmp_path):
    """Two chromosomes, by name, and the file that holds them in lines of 60."""
    rng = np.random.default_rng(0)
    bases = {name: "".join(rng.choice(list("ACGT"), size)) for name, size in (("chr1", 6000), ("chr2", 3000))}
    lines = [
        f">{name}\n" + "\n".join(text[i : i + 60] for i in range(0, len(text), 60)) for name, text in bases.items()
    ]
    (tmp_path / "genome.fa").write_text("\n".join(lines) + "\n")
    return bases, tmp_path / "genome.fa"


def written(tmp_path, lines, name="places.bed"):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path / name


def request(genome, **more):
    return Request(reference=str(genome[1]), **more)


def test_places_are_counted_from_0_without_their_end_and_the_minus_strand_is_turned(tmp_path, genome):
    path = written(
        tmp_path, ["chr1\t0\t10\ta\t1\t+\tyes", "chr1\t55\t125\tb\t2\t-\tno", "chr2\t2990\t3000\tc\t3\t.\tyes"] * 1
    )
    table = data.read(path, request(genome)).table
    bases = genome[0]
    turned = "".join(OTHER[base] for base in reversed(bases["chr1"][55:125]))
    assert table.column("sequence").tolist() == [bases["chr1"][:10], turned, bases["chr2"][-10:]]
    assert table.target_name == "column7"
    assert table.target().tolist() == ["yes", "no", "yes"]
    assert list(table.ids) == ["chr1:0-10(+)", "chr1:55-125(-)", "chr2:2990-3000"]
    assert not list(tmp_path.glob("*.fai"))


def test_a_line_of_names_names_the_columns(tmp_path, genome):
    lines = [
        "browser position chr1",
        "#chr\tfrom\tto\tactivity",
        "chr1\t0\t20\t1.5",
        "chr1\t30\t60\t2.5",
        "chr2\t5\t25\t0.5",
    ]
    table = data.read(written(tmp_path, lines), request(genome, target="activity", task="regression")).table
    assert table.target().tolist() == [1.5, 2.5, 0.5]


def test_every_wrong_place_is_named_with_its_line(tmp_path, genome):
    lines = [
        "chr1\t0\t20\tx",
        "1\t0\t20\tx",
        "chr1\t40\t30\tx",
        "chr2\t2990\t3001\tx",
        "chr1\tten\t20\tx",
        "chr3\t1\t2\tx",
    ]
    found = {
        row.position: row.reason for row in data.read(written(tmp_path, lines), request(genome, target="name")).bad
    }
    assert set(found) == {1, 2, 3, 4, 5}
    assert "called 'chr1'" in found[1]
    assert "behind the start" in found[2]
    assert "3,000 bases" in found[3]
    assert "whole numbers" in found[4]
    assert "'chr3' is not in genome.fa" in found[5]


def test_without_a_genome_or_with_none_of_its_chromosomes_it_is_refused(tmp_path, genome):
    path = written(tmp_path, ["chrX\t0\t20\tx"])
    with pytest.raises(DataError, match="--reference GENOME"):
        data.read(path, Request())
    with pytest.raises(DataError, match="no interval can be read"):
        data.read(path, request(genome))
    with pytest.raises(DataError, match="no such file"):
        data.read(path, Request(reference=str(tmp_path / "other.fa")))


def test_spaces_between_columns_and_unknown_strands_are_told(tmp_path, genome):
    with pytest.raises(DataError, match=r"places\.bed line 1: .* is no interval.*tabs"):
        data.read(written(tmp_path, ["chr1 0 20 a", "chr1 30 50 b"]), request(genome))
    path = written(tmp_path, ["chr1\t0\t20\ta\t1\t+", "chr1\t30\t50\tb\t2\t?", "chr1\t60\t80\tc\t3\t."])
    found = data.read(path, request(genome, target="score"))
    assert [(row.position, "strand '?'" in row.reason) for row in found.bad] == [(1, True)]


def test_an_index_that_is_older_than_the_genome_is_not_trusted(tmp_path, genome):
    bases, fasta = genome
    index = fasta.with_name("genome.fa.fai")
    index.write_text("chr1\t3000\t100\t60\t61\nchr2\t3000\t4000\t60\t61\n")  # of another file
    os.utime(index, (1, 1))
    table = data.read(written(tmp_path, ["chr1\t0\t10\ta", "chr2\t5\t25\tb"]), request(genome, target="name")).table
    assert table.column("sequence").tolist() == [bases["chr1"][:10], bases["chr2"][5:25]]


def test_a_genome_that_nothing_is_cut_out_of_is_refused(tmp_path, genome):
    path = written(tmp_path, ["sequence,y", "ACGTACGTAC,a", "ACGTTTTTAC,b"], "rows.csv")
    with pytest.raises(DataError, match=r"--reference .*only for BED"):
        data.read(path, request(genome, target="y"))
    with pytest.raises(UsageError, match=r"--reference .*means nothing to the type tabular"):
        zoo.plan("tabular/xgboost", path, target="y", reference=genome[1])


def test_clusters_are_chains_of_overlaps():
    chrom = ["a", "a", "b", "a", "a"]
    found = bed.overlap_clusters(chrom, np.array([0, 20, 0, 8, 10]), np.array([10, 30, 30, 12, 20]))
    assert found[0] == found[3] == found[4]
    assert len({*found}) == 3


def test_overlapping_places_are_never_on_two_sides(tmp_path, genome):
    rng = np.random.default_rng(1)
    starts = rng.integers(0, 5900, 200)
    path = written(tmp_path, [f"chr1\t{start}\t{start + 30}\t.\t0\t+\t{rng.integers(2)}" for start in starts])
    table = data.read(path, request(genome, task="classification")).table
    keys = data.keys(table, "classification", request(genome), fast=False)
    split = make_split(keys, len(table), seed=0)
    taken = {
        part: {i for row in getattr(split, part) for i in range(starts[row], starts[row] + 30)}
        for part in ("train", "test")
    }
    assert not taken["train"] & taken["test"]
    assert len(split.test) > 10


def test_a_run_on_bed_predicts_new_places_from_the_same_genome(tmp_path, genome):
    lines = [
        f"chr1\t{start}\t{start + 40}\t.\t0\t+\t{genome[0]['chr1'][start : start + 40].count('G')}"
        for start in range(0, 5900, 50)
    ]
    path = written(tmp_path, lines)
    sets = {"train.epochs": 1, "options.filters": 8}
    run = zoo.train(
        "genomics/scratch",
        path,
        target="column7",
        task="regression",
        reference=genome[1],
        set=sets,
        out=tmp_path / "run",
    )
    new = written(tmp_path, ["chr2\t0\t40", "chr2\t100\t140", "chr9\t0\t40"], "new.bed")
    found = run.predict(new)
    assert found["prediction"].notna().tolist() == [True, True, False]
    assert "'chr9'" in found["problem"].iloc[2]

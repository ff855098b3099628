"""Reading proteins: dialects, letters, labels; every row is kept, and unusable ones say why."""

import gzip

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.proteins import data
from trainers.errors import DataError

CHAIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"


def random_chains(num, length=40, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), length)) for _ in range(num)]


def frame(sequences, labels=None):
    labels = labels if labels is not None else ["a" if i % 2 else "b" for i in range(len(sequences))]
    return pd.DataFrame({"id": [f"p{i}" for i in range(len(sequences))], "sequence": sequences, "label": labels})


def reasons(reading):
    return {row.position: row.reason for row in reading.bad}


def test_windows_line_ends_blank_and_wrapped_lines_comments_and_no_last_newline_are_read(tmp_path):
    path = tmp_path / "x.fasta"
    path.write_bytes(
        f">s1 first\r\n{CHAIN}\r\n\r\n;note\r\n>s2\r\n{CHAIN[:10]}\r\n{CHAIN[10:]}\r\n>s3|x=1 y\r\n{CHAIN}".encode()
    )
    (tmp_path / "labels.csv").write_text("id,label\ns3,b\ns1,a\ns2,b\n")
    table = data.read(path, Request(labels=str(tmp_path / "labels.csv"))).table
    assert list(table.ids) == ["s1", "s2", "s3"]
    assert table.column("sequence").tolist() == [CHAIN] * 3
    assert table.target().tolist() == ["a", "b", "b"]


def test_a_packed_fasta_file_reads_like_the_plain_one(tmp_path):
    (tmp_path / "x.fasta.gz").write_bytes(gzip.compress(f">a\n{CHAIN}\n>b\n{CHAIN[::-1]}\n".encode()))
    (tmp_path / "y.csv").write_text("id,y\na,1.5\nb,2.5\n")
    reading = data.read(tmp_path / "x.fasta.gz", Request(labels=str(tmp_path / "y.csv"), target="y"))
    assert (reading.task, reading.table.target().tolist()) == ("regression", [1.5, 2.5])


def test_an_empty_record_a_double_id_and_a_missing_label_are_bad_rows_that_name_it(tmp_path):
    (tmp_path / "x.fasta").write_text(f">dup\n{CHAIN}\n>empty\n>dup\n{CHAIN}\n>alone\n{CHAIN}\n>ok\n{CHAIN}\n")
    (tmp_path / "y.csv").write_text("id,label\ndup,a\nempty,b\nok,b\n")
    reading = data.read(tmp_path / "x.fasta", Request(labels=str(tmp_path / "y.csv")))
    places = [row.place for row in reading.bad]
    assert places == ["x.fasta line 3 (empty)", "x.fasta line 4 (dup)", "x.fasta line 6 (alone)"]
    assert "no sequence" in reasons(reading)[1]
    assert "'dup' occurs before" in reasons(reading)[2]
    assert "no label for id 'alone'" in reasons(reading)[3]


def test_labels_that_match_nothing_say_so_and_what_else_is_wrong(tmp_path):
    (tmp_path / "x.fasta").write_text(f">dup\n{CHAIN}\n>empty\n>dup\n{CHAIN}\n")
    (tmp_path / "y.csv").write_text("id,label\nq,a\nr,b\n")
    with pytest.raises(DataError, match=r"no id in column 'id'.*'dup' occurs before.*\(empty\): no sequence"):
        data.read(tmp_path / "x.fasta", Request(labels=str(tmp_path / "y.csv")))


def test_uniprot_headers_give_the_accession(tmp_path):
    (tmp_path / "x.fasta").write_text(f">sp|P12345|AATM_RABIT Aspartate\n{CHAIN}\n>tr|Q9X|Y\n{CHAIN}\n")
    (tmp_path / "y.csv").write_text("accession,label\nP12345,a\nQ9X,b\n")
    assert list(data.read(tmp_path / "x.fasta", Request(labels=str(tmp_path / "y.csv"))).table.ids) == ["P12345", "Q9X"]


def test_fasta_without_labels_asks_for_them(tmp_path):
    (tmp_path / "x.fasta").write_text(f">a\n{CHAIN}\n")
    with pytest.raises(DataError, match="--labels"):
        data.read(tmp_path / "x.fasta", Request(target="y"))


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        ("MKT*AYIAK", "'*' at residue 4 is no amino acid, a stop"),
        ("MK--TAYIAK", "'-' at residue 3 is no amino acid, a gap of an alignment, and 1 more"),
        ("MKT.AYIAK", "'.' at residue 4"),
        ("MKT7AYIAK", "'7' at residue 4"),
        ("MKTéAYIAK", "'é' at residue 4"),
        ("MKT?AYIAK", "'?' at residue 4"),
        ("MKßAYIAK", "'ß' at residue 3"),
        ("", "no sequence"),
        ("*", "no sequence"),
    ],
)
def test_letters_that_are_no_residues_make_a_bad_row_with_reason_and_place(sequence, reason):
    reading = data.read(frame([CHAIN, sequence, CHAIN[::-1]]), Request(target="label"))
    assert reason in reasons(reading)[1]
    assert (len(reading.bad), len(reading.table)) == (1, 3)


def test_a_last_stop_lower_case_spaces_and_j_are_mended_aloud():
    reading = data.read(frame([CHAIN + "*", CHAIN.lower(), "MKT AYJ", CHAIN]), Request(target="label"))
    assert reading.table.column("sequence").tolist() == [CHAIN, CHAIN, "MKTAYX", CHAIN]
    said = " ".join(reading.notices)
    for text in (
        "1 sequence ended in a stop",
        "1 sequence held lower-case",
        "1 sequence held spaces",
        "1 sequence held J",
    ):
        assert text in said


def test_rare_residues_are_kept_and_counted():
    reading = data.read(frame(["MKXUUBZOA", CHAIN]), Request(target="label"))
    assert reading.table.column("sequence")[0] == "MKXUUBZOA"
    assert any("B 1, O 1, U 2, X 1, Z 1" in notice for notice in reading.notices)


def test_sequences_over_the_limit_are_counted_aloud():
    reading = data.read(frame(random_chains(6, 1500) + random_chains(6, 60)), Request(target="label"))
    assert any(
        "6 of 12 sequences are longer than 1022 residues and are cropped" in notice for notice in reading.notices
    )


def test_two_residues_that_spell_a_missing_marker_are_kept():
    reading = data.read(frame([CHAIN, "NA", "NAN"]), Request(target="label"))
    assert reading.table.column("sequence").tolist() == [CHAIN, "NA", "NAN"]


def test_the_sequence_column_is_found_by_its_letters_where_its_name_says_nothing(tmp_path):
    table = pd.DataFrame({"chain": [*random_chains(20), "NA"], "y": np.linspace(0, 1, 21)})
    table.to_csv(tmp_path / "x.csv", index=False)
    reading = data.read(tmp_path / "x.csv", Request(target="y"))
    assert reading.table.column("sequence")[20] == "NA"
    assert not reading.bad


def test_two_candidates_are_refused_by_name_and_none_lists_the_columns():
    chains = random_chains(20)
    with pytest.raises(DataError, match="columns heavy, light all hold"):
        data.read(pd.DataFrame({"heavy": chains, "light": chains, "y": range(20)}), Request(target="y"))
    with pytest.raises(DataError, match=r"no column holds protein sequences\. Columns: a, y"):
        data.read(pd.DataFrame({"a": range(20), "y": range(20)}), Request(target="y"))


def test_a_misspelt_target_is_offered_the_right_one():
    with pytest.raises(DataError, match="Did you mean label"):
        data.read(frame(random_chains(4)), Request(target="lable"))


def test_dna_is_refused_in_training():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="look like DNA"):
        data.read(frame(["".join(rng.choice(list("ACGT"), 60)) for _ in range(10)]), Request(target="label"))


def test_dna_among_proteins_is_told():
    rng = np.random.default_rng(0)
    mixed = ["".join(rng.choice(list("ACGT"), 60)) for _ in range(3)] + random_chains(7)
    notices = data.read(frame(mixed), Request(target="label")).notices
    assert any("3 sequences may be DNA or RNA" in notice for notice in notices)
    assert not any("DNA" in notice for notice in data.read(frame(random_chains(7)), Request(target="label")).notices)


def test_identical_sequences_with_differing_numbers_carry_their_mean():
    reading = data.read(frame([CHAIN, CHAIN, CHAIN[::-1]], [1.0, 2.0, 5.0]), Request(target="label", task="regression"))
    assert reading.table.target().tolist() == [1.5, 1.5, 5.0]
    assert any("2 rows hold 1 sequence with differing values" in notice for notice in reading.notices)


def test_predicting_keeps_every_row_in_order_and_needs_no_target():
    train = data.read(frame(random_chains(8)), Request(target="label"))
    facts = data.describe(train.table, train.task, Request())
    odd = pd.DataFrame({"id": ["x", "y", "x"], "sequence": ["MK7", CHAIN, CHAIN]})
    reading = data.read(odd, Request(facts=facts))
    assert [row.position for row in reading.bad] == [0]
    assert reading.table.column("sequence").tolist() == ["", CHAIN, CHAIN]


def test_evaluating_refuses_a_class_that_training_never_saw():
    train = data.read(frame(random_chains(8)), Request(target="label"))
    facts = data.describe(train.table, train.task, Request())
    reading = data.read(frame([CHAIN], ["new"]), Request(target="label", facts=facts))
    assert "was not in the training data" in reasons(reading)[0]


def test_a_model_from_a_table_predicts_on_fasta(tmp_path):
    train = data.read(frame(random_chains(8)), Request(target="label"))
    facts = data.describe(train.table, train.task, Request())
    (tmp_path / "new.fa").write_text(f">n1\n{CHAIN}\n>n2\n{CHAIN[::-1]}\n")
    assert list(data.read(tmp_path / "new.fa", Request(facts=facts)).table.ids) == ["n1", "n2"]


def test_numbers_are_decided_by_rank_correlation_and_classes_by_accuracy():
    numbers = data.read(frame(random_chains(8), np.linspace(0, 1, 8)), Request(target="label"))
    classes = data.read(frame(random_chains(8)), Request(target="label"))
    assert data.metrics(data.describe(numbers.table, numbers.task, Request()))[0].name == "spearman"
    assert data.metrics(data.describe(classes.table, classes.task, Request()))[0].name == "accuracy"


def test_the_last_rows_by_a_named_order_are_the_test():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 40)) for _ in range(40)]
    frame = pd.DataFrame(
        {"sequence": texts, "y": rng.normal(size=40), "day": [f"2020-01-{1 + i % 28:02d}" for i in range(40)]}
    )
    request = Request(target="y", order="day")
    reading = data.read(frame, request)
    keys = data.keys(reading.table, reading.task, request, fast=True)
    assert keys.rule == "time"
    assert list(keys.order) == frame["day"].tolist()


def test_a_file_without_a_header_is_refused_before_its_first_row_is_lost(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("MKVLAAGIVGLLLAQWERT\nMKVLAAGIVGLLLAQWERV\nMKVLAAGIVGLLLAQWERA\n")
    with pytest.raises(DataError, match="header is missing"):
        data.read(path, Request())


@pytest.mark.parametrize(
    ("header", "named"), [("sp|P12345|X", "sp|P12345|X"), ("sp|P12345|X", "P12345"), ("P12345", "sp|P12345|X")]
)
def test_ids_may_be_shortened_in_the_sequences_or_in_the_labels(header, named, tmp_path):
    (tmp_path / "x.fasta").write_text(f">{header}\n{CHAIN}\n>other\n{CHAIN[::-1]}\n")
    (tmp_path / "y.csv").write_text(f"id,label\nother,b\n{named},a\n")
    reading = data.read(tmp_path / "x.fasta", Request(labels=str(tmp_path / "y.csv")))
    assert not reading.bad
    assert reading.table.target().tolist() == ["a", "b"]

"""Reading tables: nothing is lost, and what is wrong is named by file and line. pandas' own reader is the reference."""

import gzip

import numpy as np
import pandas as pd
import pytest

from domains.shared.cells import as_numbers
from domains.shared.frames import FrameTable, choose_column, read_frame
from trainers.errors import DataError


@pytest.fixture
def write(tmp_path):
    def written(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def test_an_ordinary_file_reads_as_pandas_reads_it(write):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=50), "b": rng.integers(0, 9, 50), "c": rng.choice(["x", "y z"], 50)})
    path = write(frame.to_csv(index=False))
    pd.testing.assert_frame_equal(read_frame(path).frame, pd.read_csv(path))


def test_byte_order_mark_semicolons_and_decimal_commas_are_understood(write):
    reading = read_frame(write("\ufeffgröße;farbe;ziel\n0,5;rot;ja\n-1,25;blau;nein\n".encode()))
    assert list(reading.frame.columns) == ["größe", "farbe", "ziel"]
    assert reading.frame["größe"].tolist() == [0.5, -1.25]
    assert reading.comma


def test_a_comma_is_no_decimal_sign_where_another_column_has_points(write):
    reading = read_frame(write("a;b\n1,234;0.5\n2,345;1.5\n"))
    assert reading.frame["a"].tolist() == ["1,234", "2,345"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(write, separator):
    frame = read_frame(write(f"a{separator}b\n1{separator}x\n2{separator}y\n")).frame
    assert frame["a"].tolist() == [1, 2]


def test_one_column_of_prose_with_commas_is_one_column(write):
    assert read_frame(write("text\nhello, world\nwell; yes\n")).frame["text"].tolist() == ["hello, world", "well; yes"]


def test_codes_with_leading_zeros_stay_text_and_a_notice_says_so(write):
    reading = read_frame(write("zip,x\n01000,1\n10115,2\n"))
    assert reading.frame["zip"].tolist() == ["01000", "10115"]
    assert any("zip" in notice and "leading zeros" in notice for notice in reading.notices)


def test_text_columns_survive_byte_for_byte(write):
    codes = ["00017", "1e5", "0x1F", "1_000", "٣", "NA", " 7"]
    path = write("code,x\n" + "".join(f"{code},1\n" for code in codes))
    assert read_frame(path, text_columns=["code"]).frame["code"].tolist() == codes


@pytest.mark.parametrize("cell", ["0x1F", "1_000", "٣", "1,5", "abc", "1 2"])
def test_what_only_looks_like_a_number_is_none(write, cell):
    frame = read_frame(write(f'x,y\n1,1\n"{cell}",2\n')).frame
    assert frame["x"].tolist() == ["1", cell]


@pytest.mark.parametrize("marker", ["", "NA", "NaN", "null", "None", "?", "-", " ? "])
def test_missing_markers_are_missing_in_numbers_and_text(write, marker):
    frame = read_frame(write(f"x,c,k\n1,a,0\n{marker},{marker},1\n")).frame
    assert frame["x"].dtype == np.float64
    assert frame[["x", "c"]].isna().sum().tolist() == [1, 1]


def test_large_whole_numbers_keep_every_digit(write):
    frame = read_frame(write("n,m\n9007199254740993,1\n-5,2\n")).frame
    assert frame["n"].tolist() == [9007199254740993, -5]


def test_a_file_that_is_not_utf8_is_refused_until_its_encoding_is_named(write):
    path = write("ort,y\nZürich,1\nBern,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 2: byte 0xfc is not UTF-8.*--encoding cp1252"):
        read_frame(path)
    with pytest.raises(DataError, match="no such encoding"):
        read_frame(path, encoding="cp12")
    with pytest.raises(DataError, match="not ascii either"):
        read_frame(path, encoding="ascii")
    reading = read_frame(path, encoding="cp1252")
    assert reading.frame["ort"].tolist() == ["Zürich", "Bern"]
    assert "line 2" in reading.notices[0]
    assert read_frame(write("ort,y\nZürich,1\n".encode()), encoding="cp1252").frame["ort"].tolist() == ["Zürich"]


def test_utf16_zero_bytes_and_old_line_ends_are_read(write):
    assert read_frame(write("a,b\n1,ä\n".encode("utf-16"))).frame["b"].tolist() == ["ä"]
    assert read_frame(write(b"alpha,beta\n1,x\0y\n22222,zzzzz\n")).frame["beta"].tolist() == ["xy", "zzzzz"]
    assert read_frame(write(b"a,b\r1,x\r2,y\r")).frame["a"].tolist() == [1, 2]
    assert read_frame(write(b"a,b\r\n1,x\r\n2,y\r\n")).frame["b"].tolist() == ["x", "y"]


def test_places_count_lines_as_an_editor_does(write):
    reading = read_frame(write('text,y\n"two\nlines",1\n\n"x, y",2\nz,3\n'))
    assert reading.frame["text"].tolist() == ["two\nlines", "x, y", "z"]
    assert [reading.places[i] for i in range(3)] == ["table.csv line 2", "table.csv line 5", "table.csv line 6"]


def test_lines_with_too_few_or_too_many_cells_are_named_not_dropped(write):
    reading = read_frame(write("a,b\n1,2\n3\n4,5,6\n7,8\n9,10\n"))
    assert reading.frame["a"].tolist() == [1, 3, 4, 7, 9]
    assert reading.ragged == ((1, "1 cells, but the header has 2"), (2, "3 cells, but the header has 2"))
    assert reading.places[2] == "table.csv line 4"


def test_gzip_reads_like_plain_and_in_several_members(write):
    text = "a,b\n1,x\n2,y\n"
    parts = gzip.compress(text[:6].encode()) + gzip.compress(text[6:].encode())
    assert read_frame(write(parts, "t.csv.gz")).frame["b"].tolist() == ["x", "y"]


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(write):
    with pytest.raises(DataError, match="bomb"):
        read_frame(write(gzip.compress(b"a,b\n" + b"0,0\n" * 20_000_000, compresslevel=6), "t.csv.gz"))


def test_parquet_reads_without_the_index_that_pandas_saved(tmp_path):
    frame = pd.DataFrame({"a": [1.5, None], "b": ["x", "y"]}, index=["r", "s"])
    frame.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "t.parquet").frame, frame.reset_index(drop=True))


def test_a_dataframe_becomes_plain_columns_whatever_its_index():
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical([1, 2, None]),
            "mixed": [1, None, "x"],
            "count": pd.array([1, None, 3], dtype="Int64"),
            "day": pd.to_datetime(["2024-01-01T01:00"] * 3).tz_localize("CET"),
            "flag": [True, False, True],
        },
        index=[5, 5, 7],
    )
    read = read_frame(frame).frame
    assert list(read.index) == [0, 1, 2]
    assert read["kind"].fillna("missing").tolist() == ["1", "2", "missing"]
    assert read["mixed"].fillna("missing").tolist() == ["1", "missing", "x"]
    assert read["count"].dtype == np.float64
    assert read["day"].iloc[0] == pd.Timestamp("2024-01-01")
    assert read["flag"].dtype == bool


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "t.csv", "empty"),
        ("\n \n", "t.csv", "empty"),
        ("2,1,38.5,?\n1,1,39.2,3\n", "t.csv", "header"),
        ('a,b\n1,"x\n2,y\n', "t.csv", "line 2.*quote"),
        ("a,b\n1,2\n", "t.xlsx", "cannot be read"),
        (b"PK\x03\x04 a workbook", "t.csv", "Excel"),
        ("a,b\n1,2,3\n4,5,6\n", "t.csv", "do not fit the header"),
        (b"not gzip", "t.csv.gz", "not a gzip"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:20], "t.csv.gz", "cut off|broken"),
        (b"not parquet", "t.parquet", "not a readable Parquet"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_advice(write, content, name, message):
    with pytest.raises(DataError, match=message):
        read_frame(write(content, name))


def test_a_missing_file_a_folder_and_a_missing_column_offer_what_is_near(write, tmp_path):
    write("a,b\n1,2\n", "adult.csv")
    with pytest.raises(DataError, match=r"Did you mean adult.csv"):
        read_frame(tmp_path / "adul.csv")
    with pytest.raises(DataError, match="folder"):
        read_frame(tmp_path)
    with pytest.raises(DataError, match=r"no column 'incme'. Did you mean income\? Columns: age, income"):
        choose_column(pd.DataFrame({"age": [1], "income": [2]}), "incme", "x.csv")


def test_repeated_and_empty_column_names_become_unique(write):
    reading = read_frame(write("y,y,,x\n1,2,3,4\n"))
    assert list(reading.frame.columns) == ["y", "y.1", "unnamed 3", "x"]
    assert "y.1" in reading.notices[0]


def test_a_header_alone_gives_no_rows(write):
    assert len(read_frame(write("a,b\n")).frame) == 0


def test_a_cell_gives_the_same_number_whatever_stands_beside_it():
    cells = ["1", "x", None, "?", "1,5", " 2.5 ", "1e5", "-inf", "+3"]
    together, strays = as_numbers(pd.Series(cells), comma=True)
    alone = [as_numbers(pd.Series([cell], dtype=object), comma=True)[0][0] for cell in cells]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, [1, np.nan, np.nan, np.nan, 1.5, 2.5, 1e5, -np.inf, 3])
    assert strays.tolist() == [cell == "x" for cell in cells]


def test_a_table_takes_rows_by_position_and_hides_its_target():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]})
    table = FrameTable(frame, np.array(["r", "s", "t"], dtype=object), "y", {"comma": False})
    taken = table.take(np.array([2, 0]))
    assert list(taken.ids) == ["t", "r"]
    assert taken.column("x").tolist() == [3.0, 1.0]
    assert dict(taken[0]) == {"x": 3.0, "y": "a"}
    assert taken.target().dtype == object
    hidden = taken.without_target()
    assert "y" not in hidden.frame.columns
    with pytest.raises(DataError, match="no target"):
        hidden.target()


def test_blank_lines_of_one_column_are_no_rows_and_told(tmp_path):
    (tmp_path / "a.csv").write_text("class\ncat\n\ntruck\n\n")
    reading = read_frame(tmp_path / "a.csv", text_columns=["class"])
    assert reading.frame["class"].tolist() == ["cat", "truck"]
    assert any("1 blank lines are no rows" in notice for notice in reading.notices)
    (tmp_path / "b.csv").write_text('class\n"cat"\n""\n"truck"\n')
    assert read_frame(tmp_path / "b.csv", text_columns=["class"]).frame["class"].tolist() == ["cat", "", "truck"]

"""CSV files: columns, labels, and errors that name line and column."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.data import load_data, table
from handheld.errors import DataError

FLOWERS = "length,width,id,kind\n" + "".join(
    f"{i / 4},{i % 7},{1000 + i},{('rose', 'tulip', 'aster')[i % 3]}\n" for i in range(30)
)


def write(tmp_path, content: str, name: str = "t.csv"):
    path = tmp_path / name
    path.write_text(content)
    return path


def test_text_labels_become_classes(tmp_path):
    data = load_data(str(write(tmp_path, FLOWERS)), 4, drop=["id"])
    assert data.classes == ("aster", "rose", "tulip") and data.facts.features == ("length", "width")
    assert data.facts.label == "kind" and any("dropped id" in note for note in data.notes)
    assert data.train.samples == 24 and data.test.samples == 6
    x, y = data.train.arrays
    assert x.dtype == np.float32 and y.dtype == np.int64
    for row, label in zip(x, y, strict=True):
        assert data.classes[label] == ("rose", "tulip", "aster")[round(row[0] * 4) % 3]


def test_the_label_can_be_any_column(tmp_path):
    content = "y;a;b\n" + "\n".join(f"{i % 3 + 1};{i};0.5" for i in range(12))
    data = table(write(tmp_path, content), 2, label="y")
    assert data.facts.features == ("a", "b") and data.classes == ("1", "2", "3")
    assert any("labels 1, 2, 3 became the classes 0 to 2" in note for note in data.notes)
    assert set(data.train.arrays[1]) == {0, 1, 2}
    tabs = table(write(tmp_path, content.replace(";", "\t"), "t.tsv"), 2, label="y")
    np.testing.assert_array_equal(tabs.train.arrays[0], data.train.arrays[0])


def test_numbers_with_a_point_are_a_regression(tmp_path):
    path = write(tmp_path, "a,price\n" + "\n".join(f"{i},{i * 1.5}" for i in range(20)))
    data = table(path, 2)
    assert not data.classes and data.train.arrays[1].shape == (16, 1) and data.train.arrays[1].dtype == np.float32
    assert any("regression" in note for note in data.notes)
    many = write(tmp_path, "a,price\n" + "\n".join(f"{i},{i * 7}" for i in range(200)), "many.csv")
    assert not table(many, 2).classes
    assert len(table(many, 2, regression=False).classes) == 200
    binary = table(write(tmp_path, FLOWERS), 2, drop=["id"], regression=True)
    assert binary.train.arrays[1].dtype == np.float32 and len(binary.classes) == 3


def test_columns_are_normalised_before_they_are_rounded(tmp_path):
    path = write(tmp_path, "t,y\n" + "\n".join(f"{1_700_000_000 + i},{'ab'[i % 2]}" for i in range(50)))
    data = table(path, 5, normalise=True)
    assert len(set(data.train.arrays[0].ravel().tolist())) == 40
    assert abs(data.train.arrays[0].std() - 1) < 1e-3 and len(data.facts.mean) == 1
    assert any("rounded to float32 in t" in note for note in table(path, 5).notes)


def test_an_earlier_table_decides_columns_and_classes(tmp_path):
    first = table(write(tmp_path, FLOWERS), 4, drop=["id"], normalise=True)
    other = write(tmp_path, "kind,width,extra,length\n" + "tulip,1,2,3\nrose,4,5,6\n" * 5, "other.csv")
    second = load_data(str(other), 2, like=first.facts)
    assert second.facts.features == ("length", "width") and second.classes == first.classes
    assert second.facts.mean == first.facts.mean
    assert any("columns that the model does not take: extra" in note for note in second.notes)
    assert any("no samples of the model's classes aster" in note for note in second.notes)
    assert set(second.train.arrays[1]) == {1, 2}
    with pytest.raises(DataError, match=r"no column 'length', which the model was trained with. It has: width, kind"):
        table(write(tmp_path, "width,kind\n1,rose\n", "less.csv"), 1, like=first.facts)


@pytest.mark.parametrize(
    ("content", "options", "match"),
    [
        ("a,b\n1,x\n", {"label": "c"}, "has no column 'c' for the labels. It has: a, b"),
        ("a,b\n1,x\n", {"drop": ["c"]}, "has no column 'c' to drop"),
        ("a,b\n1,x\nred,y\n", {}, "column 'a' .* line 3: 'red'. Try: --drop a"),
        ("a b,c\nred,y\n", {}, "Try: --drop 'a b'"),
        ("a,b\n1,x\n,y\n", {}, "no value in line 3, column 'a'. Try: fill it in"),
        ("a,b\n1,x\nNA,y\n", {}, r"no value in line 3, column 'a' \('NA'\)"),
        ("a,b\n1,x\n2,\n", {}, "no value in line 3, column 'b'"),
        ("a,b\ninf,x\n", {}, "not a number in line 2: 'inf'"),
        ("a,b\n1,x,3\n", {}, "line 2 of .* has 3 fields; the header has 2"),
        ("1,2\n3,4\n", {}, "first row of .* holds numbers. Try: a header row"),
        ("a,a\n3,4\n", {}, "twice a column 'a'"),
        ("a,\n3,4\n", {}, "a column without a name"),
        ("a,b\n", {}, "has no samples"),
        ("", {}, "has no samples"),
        ("b\n1\n", {}, "only the label column"),
    ],
)
def test_bad_tables(tmp_path, content, options, match):
    with pytest.raises(DataError, match=match):
        table(write(tmp_path, content), 1, **options)


def test_other_encodings(tmp_path):
    (tmp_path / "t.csv").write_bytes("a,b\n1,ä\n2,ö\n".encode("latin-1"))
    with pytest.raises(DataError, match="save it as UTF-8"):
        table(tmp_path / "t.csv", 1)
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + b"a,b\r\n1,x\r\n\r\n2,y\r\n")
    assert table(tmp_path / "t.csv", 1, test=0).facts.features == ("a",)

"""Tables of paths and labels, in every format, with every odd cell; what is wrong names the row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters.fields import parse_fields
from converters.source import SampleFault
from converters.sources.labels import Labels
from converters.sources.table import Table
from converters.sources.text_table import TextTable
from dataloading import ConvertError, FloatField, TextField, UsageError

from .making import jpeg, samples

ROWS = [
    ("images/1.jpg", "zebra", 'a "quoted",\nline', 0.5),
    ("images/ü 中.jpg", "ant", "", 1.0),
    ("images/3.jpg", "bee", "plain", -2.25),
    ("images/1.jpg", "ant", "again", 1e-3),
]
NAMES = ["path", "label", "caption", "weight"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(("1.jpg", "ü 中.jpg", "3.jpg")):
        (tmp_path / "images" / name).write_bytes(jpeg(number))
    return tmp_path


def written(root: Path, kind: str) -> Path:
    """ROWS as a file of that kind."""
    path = root / f"rows.{kind}"
    if kind in {"csv", "tsv"}:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if kind == "csv" else "\t")
            writer.writerows([NAMES, *ROWS])
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in ROWS), "utf-8")
    else:
        import pyarrow as pa
        import pyarrow.parquet

        table = pa.table({name: [row[place] for row in ROWS] for place, name in enumerate(NAMES)})
        pa.parquet.write_table(table, path, row_group_size=3)
    return path


def expected(root: Path) -> list[dict[str, Any]]:
    classes = {"ant": 0, "bee": 1, "zebra": 2}
    return [
        {
            "image": (root / path).read_bytes(), "label": classes[label], "caption": text, "weight": weight,
        }
        for path, label, text, weight in ROWS
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_table_gives_the_same_samples_in_its_order(root: Path, kind: str) -> None:
    source = Table(str(written(root, kind)), specs=parse_fields(["caption=text", "weight=float"]))
    assert samples(source) == expected(root)
    assert source.class_names == ["ant", "bee", "zebra"]
    assert [type(field) for field in source.fields.values()][2:] == [TextField, FloatField]
    assert source.name(1) == "images/ü 中.jpg"
    assert source.provenance == {"source": "manifest", "source_name": f"rows.{kind}", "source_samples": 4}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_can_be_asked_for_in_any_order(root: Path, kind: str) -> None:
    source = Table(str(written(root, kind)), specs=parse_fields(["caption=text", "weight=float"]), random_access=True)
    load = source.load
    for index in (3, 0, 2, 1, 1, 3):
        assert load(source.task(index)) == expected(root)[index]


def test_a_class_file_fixes_the_labels_and_refuses_others(root: Path) -> None:
    source = Table(str(written(root, "csv")), class_names=["zebra", "ant"])
    load = source.load
    assert [load(source.task(index))["label"] for index in (0, 1, 3)] == [0, 1, 1]
    with pytest.raises(SampleFault, match="its label 'bee' is not one of the 2 classes"):
        load(source.task(2))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_whole_numbers_stay_as_they_are(root: Path, kind: str) -> None:
    path = root / f"n.{kind}"
    rows = [("images/1.jpg", 7), ("images/3.jpg", 0)]
    if kind == "csv":
        path.write_text("file,target\n" + "".join(f"{name},{label}\n" for name, label in rows))
    else:
        path.write_text("".join(json.dumps({"file": name, "target": label}) + "\n" for name, label in rows))
    source = Table(str(path))
    assert (source.image_column, source.label_column, source.class_names) == ("file", "target", None)
    assert [each["label"] for each in samples(source)] == [7, 0]


def test_numbers_with_leading_zeros_are_names(root: Path) -> None:
    (root / "n.csv").write_text("path,label\nimages/1.jpg,007\nimages/3.jpg,10\n")
    source = Table(str(root / "n.csv"))
    assert source.class_names == ["007", "10"]
    assert [each["label"] for each in samples(source)] == [0, 1]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_numbers_and_words_are_not_sorted_into_other_numbers(root: Path, kind: str) -> None:
    rows = [("images/1.jpg", "10"), ("images/1.jpg", "2"), ("images/1.jpg", "dog")]
    if kind == "jsonl":
        text = "".join(json.dumps({"path": path, "label": label}) + "\n" for path, label in rows)
    else:
        text = "path,label\n" + "".join(f"{path},{label}\n" for path, label in rows)
    (root / f"mixed.{kind}").write_text(text.replace(",", "\t") if kind == "tsv" else text, "utf-8")
    with pytest.raises(ConvertError, match=r"numbers and names: '2' and 'dog'.*--classes"):
        Table(str(root / f"mixed.{kind}"))
    source = Table(str(root / f"mixed.{kind}"), class_names=["2", "10", "dog"])
    assert [source.load(source.task(index))["label"] for index in range(3)] == [1, 0, 2]


@pytest.mark.parametrize("others", [["3", "5"], ["cat", "dog"]])
def test_an_empty_label_is_a_fault_of_its_sample_and_no_class(root: Path, others: list[str]) -> None:
    image = next(path for path in root.rglob("*") if path.suffix in {".jpg", ".png"}).relative_to(root)
    lines = [f"{image},{label}\n" for label in [others[0], "", others[1]]]
    (root / "gaps.csv").write_text("path,label\n" + "".join(lines))
    source = Table(str(root / "gaps.csv"))
    assert source.class_names == (None if others == ["3", "5"] else others)
    with pytest.raises(SampleFault, match=r"has no label|expected a whole number"):
        source.load(source.task(1))
    assert source.load(source.task(2))["label"] == (5 if source.class_names is None else 1)


def test_a_table_without_labels_makes_none(root: Path) -> None:
    (root / "n.csv").write_text("path\nimages/1.jpg\n")
    assert samples(Table(str(root / "n.csv"))) == [{"image": jpeg(0)}]


def test_columns_are_chosen_by_name_and_paths_begin_at_the_root(root: Path) -> None:
    table = root / "elsewhere"
    table.mkdir()
    (table / "n.csv").write_text(f"a,b,c d\nx,1.jpg,cat\ny,{root}/images/3.jpg,dog\n")
    source = Table(str(table / "n.csv"), image_column="b", label_column="c d", root=f"{root}/images/")
    assert samples(source) == [{"image": jpeg(0), "label": 0}, {"image": jpeg(2), "label": 1}]


def test_a_path_that_is_not_utf_8_is_found(root: Path) -> None:
    (root / "n.csv").write_bytes(b"path\n\xff.jpg\n")
    (root / "\udcff.jpg").write_bytes(b"odd")
    source = Table(str(root / "n.csv"))
    assert samples(source) == [{"image": b"odd"}]
    assert source.name(0) == "\\xff.jpg"


def test_marks_blank_lines_and_foreign_line_ends_are_taken_in_stride(root: Path) -> None:
    (root / "n.csv").write_bytes(b'\xef\xbb\xbfpath,label\r\n\r\n"images/1.jpg",0\r\n\n\nimages/3.jpg,1')
    source = Table(str(root / "n.csv"))
    assert samples(source) == [{"image": jpeg(0), "label": 0}, {"image": jpeg(2), "label": 1}]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(st.text(st.characters(blacklist_characters="\0\r", codec="utf-8")), min_size=2, max_size=2))
)
def test_records_come_back_as_they_were_written(tmp_path: Path, rows: list[list[str]]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    path = tmp_path / "r.csv"
    path.write_bytes(buffer.getvalue().encode())
    table = TextTable(str(path), "csv")
    assert [value for _, value in table.find(lambda name: name == "b")] == [b for _, b in rows]
    rows_of = table.rows()
    assert [list(rows_of.row(*table.task(index)).values()) for index in range(len(table))] == rows


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("images/1.jpg", "line 3: its record has 1 cells, expected 3"),
        ("\r\n\nimages/1.jpg", "line 5: its record has 1 cells, expected 3"),
        ("images/1.jpg,0,1,2", "its record has 4 cells, expected 3"),
        ("images/9.jpg,0,1", r"images/9.jpg cannot be read: No such file"),
        (",0,1", "the path is empty"),
        ("images,0,1", r"images cannot be read|not a regular file"),
        ("images/1.jpg,0,one", "field 'weight': expected float, got str 'one'"),
        ("images/1.jpg,0,", "field 'weight': expected float, got str ''"),
    ],
)
def test_a_bad_row_is_a_fault_of_its_sample(root: Path, row: str, words: str) -> None:
    (root / "n.csv").write_text(f"path,label,weight\nimages/1.jpg,0,1\n{row}\n")
    source = Table(str(root / "n.csv"), specs=parse_fields(["weight=float"]))
    load = source.load
    assert load(source.task(0))["weight"] == 1
    with pytest.raises(SampleFault, match=words):
        load(source.task(1))
    assert source.name(1)


CAT_AND_DOG = [{"image": jpeg(0), "label": 0}, {"image": jpeg(2), "label": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "path, label\nimages/1.jpg, cat\nimages/3.jpg, dog\n",
        " path\t,\u00a0label \n images/1.jpg ,cat \nimages/3.jpg,\tdog\n",
        'path, "label"\n"images/1.jpg" , "cat"\n  "images/3.jpg",dog\n',
        "path;label\nimages/1.jpg;cat\nimages/3.jpg;dog\n",
        '"path, so";"label"\nimages/1.jpg;cat\nimages/3.jpg;dog\n',
        "path\tlabel\nimages/1.jpg\tcat\nimages/3.jpg\tdog\n",
        "path|label\nimages/1.jpg|cat\nimages/3.jpg|dog\n",
        "path,label\rimages/1.jpg,cat\rimages/3.jpg,dog",
        "path,label\r\n\nimages/1.jpg,cat\r\r\n\nimages/3.jpg,dog\n\r",
        "\ufeffFile,Label\nimages/1.jpg,cat\nimages/3.jpg,dog\n",
        "PATH,Class\nimages/1.jpg,cat\nimages/3.jpg,dog\n",
        ",path,target\n0,images/1.jpg,cat\n1,images/3.jpg,dog\n",
        'path,label,meta\nimages/1.jpg,cat,"' + "x\n" * 200_000 + '"\nimages/3.jpg,dog,' + "y" * 200_000,
    ],
)
def test_blanks_delimiters_line_ends_letters_and_long_cells_do_not_hide_labels(root: Path, text: str) -> None:
    limit = csv.field_size_limit()
    (root / "n.csv").write_bytes(text.encode())
    source = Table(str(root / "n.csv"), image_column="path, so" if "so" in text else None)
    assert samples(source) == CAT_AND_DOG
    assert source.class_names == ["cat", "dog"]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_label_that_some_records_lack_is_missed_wherever_they_are(root: Path, place: int) -> None:
    lines = ['{"path": "images/1.jpg", "label": "cat"}\n', '{"path": "images/3.jpg", "label": "dog"}\n']
    lines.insert(place, '{"path": "images/1.jpg"}\n')
    (root / "n.jsonl").write_text("".join(lines))
    source = Table(str(root / "n.jsonl"))
    load = source.load
    with pytest.raises(SampleFault, match="its record has no 'label', only 'path'"):
        load(source.task(place))
    rest = [index for index in range(3) if index != place]
    assert [load(source.task(index)) for index in rest] == CAT_AND_DOG


def test_the_columns_of_json_lines_are_those_of_all_records(root: Path) -> None:
    (root / "n.jsonl").write_text('[1]\n{"path": "images/1.jpg"}\n{"late": 1, "path": "images/3.jpg"}\n')
    source = Table(str(root / "n.jsonl"), specs=parse_fields(["n=int@late"]))
    assert source.load(source.task(2)) == {"image": jpeg(2), "n": 1}
    assert Table(str(root / "n.jsonl")).passed_over == ["late"]
    (root / "m.jsonl").write_text("\n".join(f'{{"key {n}": 1}}' for n in range(10_001)))
    with pytest.raises(ConvertError, match="more than 10,000 different keys"):
        Table(str(root / "m.jsonl"))


def test_columns_that_are_not_taken_are_known(root: Path) -> None:
    (root / "n.csv").write_text("path,species,caption,label,\nimages/1.jpg,cat,x,0,\n")
    source = Table(str(root / "n.csv"), specs=parse_fields(["caption=text"]))
    assert source.passed_over == ["species", "(without a name)"]
    # A column that a field takes is not taken for the labels as well.
    source = Table(str(root / "n.csv"), specs=parse_fields(["n=int@label", "caption=text"]))
    assert (source.label_column, source.passed_over) == (None, ["species", "(without a name)"])


def test_a_path_with_blanks_is_that_file_if_there_is_one(root: Path) -> None:
    (root / "images" / " 1.jpg").write_bytes(jpeg(9))
    (root / "n.csv").write_text("label,path\n0,images/ 1.jpg\n1, images/3.jpg\n")
    assert [sample["image"] for sample in samples(Table(str(root / "n.csv")))] == [jpeg(9), jpeg(2)]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("n.csv", b"images/1.jpg,cat\n", r"first line \(images/1.jpg, cat\) looks like a sample.*1i path,label' FILE"),
        ("n.csv", b"path,label, label\na,b,c\n", "names the column 'label' twice"),
        ("n.csv", b"path,label\nimages/1.jpg,caf\xe9\n", r"the label caf\\xe9 is not UTF-8.*iconv -f WINDOWS-1252"),
        ("n.csv", "path,label\na,b\n".encode("utf-16-be"), "is UTF-16; save it as UTF-8: iconv -f UTF-16"),
        ("n.csv", "path,label\na,b\n".encode("utf-32"), "is UTF-32; save it as UTF-8"),
        ("n.jsonl", '{"path": "a"}\n'.encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("n.csv", b'path,label\na.jpg,"cat"s\n', "from line 2 to line 3 cannot be read: 's' follows a closing quote"),
        ("n.jsonl", b'[{"path": "a"}]\n', r"is a JSON list, expected an object .*jq -c"),
        ("n.json", b"[]", r"a table ends in .*jq -c '\.\[\]' FILE\.json"),
    ],
)
def test_tables_that_hide_their_columns_are_refused_with_the_way_out(
    root: Path, name: str, data: bytes, words: str
) -> None:
    (root / name).write_bytes(data)
    with pytest.raises((ConvertError, UsageError), match=words):
        Table(str(root / name))


def test_parquet_whose_images_are_no_paths_is_sent_to_the_other_source(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"image": [b"x"], "label": [0]}), root / "n.parquet")
    with pytest.raises(UsageError, match="column 'image' is binary, expected paths; `beton convert huggingface`"):
        Table(str(root / "n.parquet"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"path": "images/1.jpg"}', "has no 'label', only 'path'"),
        ('{"path": 3, "label": 0}', "column 'path': expected a path, got 3"),
        ('{"path": "images/1.jpg", "label": null}', "its label is None, expected a whole number"),
        ("{", r"line 2: .* is not JSON \(Expecting property name .* at character 2\)"),
        ("\n\n{", "line 4: .* is not JSON"),
        ("[" * 100_000, "line 2: .* is not JSON"),
        ("[1]", "is a JSON list, expected an object"),
    ],
)
def test_a_bad_json_line_is_a_fault_of_its_sample(root: Path, line: str, words: str) -> None:
    (root / "n.jsonl").write_text('{"path": "images/1.jpg", "label": 0}\n' + line + "\n")
    source = Table(str(root / "n.jsonl"))
    assert source.load(source.task(0))["label"] == 0
    with pytest.raises(SampleFault, match=words):
        source.load(source.task(1))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("n.csv", "", "the first line is empty"),
        ("n.csv", "path,path\n", "names the column 'path' twice"),
        ("n.csv", "path,label\n", "lists no samples"),
        ("n.csv", 'path,label\n"a.jpg,1\n', "line 3 cannot be read"),
        ("n.csv", "path,label\na,1\nb,cat\nc,2.5\n", "a label is '2.5'"),
        (
            "n.jsonl",
            '{"path": "a", "label": 1}\n{"path": "b", "label": "cat"}\n',
            "labels are numbers and names: 1 and 'cat'",
        ),
        ("n.jsonl", '{"path": "a", "label": 1.5}\n', r"a label is a float \(1.5\)"),
        ("n.csv", "path,label\na,2.0\nb,10.0\n", "a label is '2.0', expected whole numbers or names"),
        ("n.jsonl", "nonsense\n", "is not JSON"),
    ],
)
def test_a_table_that_cannot_be_used_is_explained(root: Path, name: str, text: str, words: str) -> None:
    (root / name).write_text(text)
    with pytest.raises(UsageError if "no samples" in words else ConvertError, match=words):
        Table(str(root / name))


def test_utf_16_is_named(root: Path) -> None:
    (root / "n.csv").write_text("path\na\n", encoding="utf-16")
    with pytest.raises(ConvertError, match=r"n\.csv is UTF-16; save it as UTF-8"):
        Table(str(root / "n.csv"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_column": "pth"}, r"--image-column pth: .* has the columns path, label, caption, weight"),
        ({"label_column": "labels"}, "--label-column labels"),
        ({"specs": parse_fields(["c=text@capt"])}, "--field c: .*, not 'capt'"),
        ({"specs": parse_fields(["label=int"])}, "--label-column says where the labels are"),
    ],
)
def test_columns_that_are_not_there_are_a_usage_error(root: Path, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Table(str(written(root, "csv")), **options)


def test_other_endings_and_tables_without_paths_are_a_usage_error(root: Path) -> None:
    (root / "n.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="--image-column says which of them"):
        Table(str(root / "n.csv"))
    with pytest.raises(UsageError, match=r"ends in \.csv, \.tsv"):
        Table(str(root / "n.xlsx"))


def test_too_many_names_are_no_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.sources.labels._MOST_CLASSES", 3)
    assert Labels(["a", "b", "c", "a"]).names() == ["a", "b", "c"]
    with pytest.raises(UsageError, match=r"more than 3 different words.*--field NAME=text"):
        Labels(["a", "b", "c", "d"]).names()
    assert Labels(map(str, range(10))).names() is None


def test_the_table_and_what_it_names_may_be_urls(root: Path, memory: Any) -> None:
    for name in ("1.jpg", "ü 中.jpg", "3.jpg"):
        memory(f"memory://set/images/{name}", (root / "images" / name).read_bytes())
    specs = parse_fields(["caption=text", "weight=float"])
    for kind in ("csv", "jsonl", "parquet"):
        url = memory(f"memory://set/rows.{kind}", written(root, kind).read_bytes())
        assert samples(Table(url, specs=specs)) == expected(root)
    (root / "n.csv").write_text("path\nmemory://set/images/3.jpg\nmemory://set/none.jpg\n")
    source = Table(str(root / "n.csv"))
    assert source.load(source.task(0)) == {"image": jpeg(2)}
    with pytest.raises(SampleFault, match=r"memory://set/none\.jpg cannot be read: it does not exist"):
        source.load(source.task(1))


def test_the_parent_keeps_some_bytes_a_row(root: Path) -> None:
    import tracemalloc

    num_rows = 200_000
    with (root / "n.csv").open("w") as file:
        file.write("path,label\n")
        for number in range(num_rows):
            file.write(f"some/quite/long/folder/name/of/an/image/{number:09}.jpg,class_{number % 1000}\n")
    tracemalloc.start()
    source = Table(str(root / "n.csv"))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(source) == num_rows
    assert held < 20 * num_rows
    assert peak < 40 * num_rows

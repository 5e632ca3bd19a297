"""TextRows are cut and parsed as the csv module would parse the whole file."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.sources.text_table import TextTable

cells = st.text(st.sampled_from('ab ,;"\t\n\ré\x0b\x0c\x1c\x85\u2028'), max_size=5)
tables = st.lists(st.tuples(cells, cells, cells), max_size=6)


@given(table=tables, ending=st.sampled_from(["\n", "\r\n"]), kind=st.sampled_from(["csv", "tsv"]), blanks=st.booleans())
def test_each_record_by_itself_is_the_row_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, ...]], ending: str, kind: str, blanks: bool
) -> None:
    text = io.StringIO()
    # Left to itself the writer does not quote a carriage return by itself, which no reader then takes.
    quoting = csv.QUOTE_ALL if any("\r" in cell for row in table for cell in row) else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter="," if kind == "csv" else "\t", lineterminator=ending, quoting=quoting)
    writer.writerow(["x", "y", "z"])
    for row in table:
        writer.writerow(row)
        if blanks:
            text.write(ending)
    path = tmp_path_factory.mktemp("records") / f"a.{kind}"
    path.write_bytes(text.getvalue().encode())
    rows = TextTable(str(path), kind)
    list(rows.find(lambda _: False))
    reader = rows.rows()
    found = [tuple(reader.row(*rows.task(index)).values()) for index in range(len(rows))]
    assert found == table

"""Read a data table from a file, with every cell as the text in the file.

It reads CSV with commas, semicolons, tabs, bars or spaces as separators, JSON lines, and logs of
Inspect (an evaluation framework). The encoding may be UTF-8, UTF-16 or Latin-1; the file may be
compressed by gzip, bzip2, xz or zip. Cells stay text, so "001" and "1" are different names.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.support.checks import checked_fields, file_path
from interp.support.errors import InputError, require
from interp.support.files import convert_read_errors
from interp.support.foreign import json_in

if TYPE_CHECKING:
    import pandas as pd

MOST_BYTES = 256_000_000
"""Largest size of a table in bytes, uncompressed."""

_SEPARATORS = ("\t", ";", ",", "|")
_BLANKS_PATTERN = r"\s+"
"""Separator of a table whose header has none of :data:`_SEPARATORS`, as a regular expression."""
_DECOMPRESSORS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""First bytes of a compressed file -> the function that decompresses it."""
_BINARY_FORMATS = {
    b"PAR1": "Parquet",
    b"\x89HDF": "HDF5 or MATLAB",
    b"MATLAB": "MATLAB",
    b"$FL2": "SPSS",
    b"RDX": "R",
    b"\x80": "pickled",
    b"\xd0\xcf\x11\xe0": "an old Excel",
}
_EMPTY_WORDS = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None", "<NA>"]
)


_SAMPLE_FIELDS = ("id", "epoch", "target", "messages")


@dataclass(frozen=True)
@checked_fields
class TextTable:
    """A table read from a file, in which every cell is text.

    Attributes:
        path: the file.
        cells: data frame with one column per name in the header; empty cells are NaN. Its index
            has the place of each row in the file, for error messages, such as "line 3"; "object
            3" in a JSON list, "sample 3" in a log of Inspect. No two rows have the same place.
        encoding: the encoding of the file.
        remarks: sentences about what the user should check.
    """

    path: Path
    cells: pd.DataFrame
    encoding: str
    remarks: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The path of the file in quotes, for error messages."""
        return repr(str(self.path))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(map(str, self.cells.columns))


def read_text_table(path: str | Path, encoding: str | None = None) -> TextTable:
    """Read a table from a file, with every cell as text.

    Args:
        path: a file of text with columns, with a header; or of JSON objects, one per row.
        encoding: encoding of the file, such as "utf-8" or "latin-1"; detected when None.

    Raises:
        InputError: the file is no table; the message says what to do.
    """
    path = Path(file_path(path))
    with convert_read_errors(path, "give a table with a header and a row a trial"):
        content = _read_bytes(path)
        text, used_encoding = _decode(path, content, encoding)
        lines = _number_lines(text)
        require(lines, f"{str(path)!r} is empty; give a table with a header and a row a trial")
        first_line = lines[0][1]
        is_json = first_line.lstrip().startswith(("{", "["))
        cells = _parse_json(path, text) if is_json else _parse_columns(path, lines)
        remarks: tuple[str, ...] = ()
        if used_encoding == "Latin-1":
            remark = f"{str(path)!r} is not in UTF-8 and was read as Latin-1"
            remarks = (f"{remark}; if letters are wrong, give encoding=.",)
        return TextTable(path, _clean(cells), encoding=used_encoding, remarks=remarks)


def _read_bytes(path: Path) -> bytes:
    """Read the content of the file at ``path``, decompressed if it is compressed; refuse binary
    formats such as Excel.
    """
    with open(path, "rb") as stream:
        start = stream.read(8)
        stream.seek(0)
        for first_bytes, kind in _BINARY_FORMATS.items():
            require(
                not start.startswith(first_bytes),
                f"{str(path)!r} is {kind} data, no table of text; save it as CSV in UTF-8",
            )
        if start.startswith(b"PK"):  # a zip archive
            return _read_zip(path)
        for first_bytes, unpack in _DECOMPRESSORS.items():
            if start.startswith(first_bytes):
                with unpack(stream) as unpacked:
                    return _read_at_most(path, unpacked)
        return _read_at_most(path, stream)


def _require_size(path: Path, n_bytes: int) -> None:
    """Raise InputError if a table has more than 256 MB uncompressed.

    Args:
        path: the file, for the error message.
        n_bytes: number of uncompressed bytes.
    """
    require(
        n_bytes <= MOST_BYTES,
        f"{str(path)!r} has more than {MOST_BYTES // 10**6} MB once unpacked, the most that is read; "
        "save the columns that are needed, or fewer rows",
    )


def _read_at_most(path: Path, stream: Any) -> bytes:
    """Read a stream to its end; refuse it if it has more than 256 MB.

    Args:
        path: the file, for the error message.
        stream: the open file.
    """
    content: bytes = stream.read(MOST_BYTES + 1)
    _require_size(path, len(content))
    return content


def _read_zip(path: Path) -> bytes:
    """Read the only file in the zip archive at ``path``. If the archive is a log of Inspect, return
    its samples as one JSON object {"samples": [...]}.
    """
    with suppress(ImportError):  # comes with Inspect; its logs need it before Python 3.14
        import_module("zipfile_zstd")
    archive = zipfile.ZipFile(path)
    members = archive.infolist()
    _require_size(path, sum(member.file_size for member in members))
    names = [member.filename for member in members if not member.is_dir()]
    require(
        "[Content_Types].xml" not in names,  # which an Excel workbook has
        f"{str(path)!r} is a workbook of a spreadsheet; save it as CSV in UTF-8",
    )
    samples = [name for name in names if fnmatch(name, "samples/*.json")]
    if samples:  # a log of Inspect, with a JSON object in each of these files
        return b'{"samples": [%s]}' % b",".join(_read_members(path, archive, samples))
    listed = ", ".join(names[:5]) or "nothing"
    require(
        len(names) == 1,
        f"{str(path)!r} must hold one table, and it holds {listed}; unpack it and give the one that is meant",
    )
    (content,) = _read_members(path, archive, names)
    return content


def _read_members(path: Path, archive: zipfile.ZipFile, names: Sequence[str]) -> list[bytes]:
    """Return the contents of some files in a zip archive.

    Args:
        path: the archive, for error messages.
        archive: the open archive.
        names: names of the files in the archive.
    """
    contents = []
    for name in names:
        try:
            stream = archive.open(name)
        except NotImplementedError:
            raise InputError(
                f"{str(path)!r} is compressed in a way that this Python cannot unpack; of a log of Inspect, convert "
                "it first: inspect log convert LOG.eval --to json --output-dir FOLDER"
            ) from None
        with stream:
            contents.append(_read_at_most(path, stream))
    return contents


def _decode(path: Path, content: bytes, encoding: str | None) -> tuple[str, str]:
    """Decode the bytes of a file to text. Without ``encoding``, the encoding is detected: UTF-32,
    UTF-16, UTF-8, or otherwise Latin-1.

    Args:
        path: the file, for error messages.
        content: the bytes.
        encoding: the encoding that the user named; None to detect it.

    Returns:
        The text and the name of its encoding.
    """
    if encoding is not None:
        try:
            return codecs.decode(content, encoding), encoding
        except LookupError:
            wrong = f"encoding {encoding!r} is not known; give utf-8, utf-16, latin-1 or another of Python's"
            raise InputError(wrong) from None
        except UnicodeDecodeError as error:
            wrong = (
                f"{str(path)!r} is not in {encoding} (byte {error.start}); give another encoding="
            )
            raise InputError(wrong) from None
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return content.decode("utf-32"), "UTF-32"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16"), "UTF-16"
    # UTF-16 without a mark at the beginning is recognised by its zeros: every second byte is 0, if
    # letters are plain.
    head = content[:2000]
    n_zeros = head.count(0)
    if n_zeros > len(head) // 4:
        name = "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
        return content.decode(name), "UTF-16"
    require(
        n_zeros == 0,
        f"{str(path)!r} holds bytes that are no text; save it as CSV in UTF-8, or give encoding=",
    )
    try:
        return content.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return content.decode("latin-1"), "Latin-1"


def _number_lines(text: str) -> list[tuple[int, str]]:
    """Split text into lines, and return (line number from 1, line) for every line that is not
    blank.
    """
    lines = re.split(r"\r\n?|\n", text)
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _find_separator(header: str) -> str:
    """Return the separator of a table with this header line: the most frequent of tab, ";", "," and
    "|". Without any of these, return a regular expression for spaces.
    """
    best = max(_SEPARATORS, key=header.count)
    if best in header:
        return best
    return _BLANKS_PATTERN if " " in header.strip() else ","


def _parse_columns(path: Path, lines: list[tuple[int, str]]) -> pd.DataFrame:
    """Split lines into a data frame, whose columns have the names of the first line and whose index
    are the line numbers.

    Args:
        path: the file, for error messages.
        lines: (line number, line) for every line that is not blank.
    """
    import pandas as pd

    separator = _find_separator(lines[0][1])
    text = "\n".join(line.strip(" ") for _, line in lines)

    def read_rows(n_rows: int | None = None) -> tuple[pd.DataFrame, pd.Series]:
        """Read the first rows, all when None; return their cells and how many lines each has. A
        quoted cell may contain line breaks, so that a row has several lines.
        """
        cells = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=None,
            dtype=str,
            na_filter=False,
            skipinitialspace=True,
            nrows=n_rows,
        )
        n_breaks = cells.apply(lambda column: column.str.count("\n")).sum(axis=1)
        return cells, n_breaks + 1

    try:
        cells, n_lines = read_rows()
    except pd.errors.ParserError as error:
        n_rows, what = _describe_wrong_row(str(error))
        _, n_lines = read_rows(n_rows)
        number, _ = lines[int(n_lines.sum())]
        raise InputError(f"line {number} of {str(path)!r} {what}") from None
    first_lines = n_lines.cumsum() - n_lines  # indices into `lines`
    cells.index = pd.Index([f"line {lines[i][0]}" for i in first_lines], dtype=object)
    # A row with fewer fields than the header has "" in its last columns.
    is_short = cells.iloc[:, -1] == ""
    if separator == _BLANKS_PATTERN and is_short.any():
        raise InputError(
            f"{is_short.idxmax()} of {str(path)!r} has fewer fields than the header has names; blanks separate "
            "fields, so an empty cell cannot be seen: write a word such as NA in it, or separate fields by commas"
        )
    return cells.set_axis(cells.iloc[0], axis=1).iloc[1:]  # the first row is the header


def _describe_wrong_row(reason: str) -> tuple[int, str]:
    """Return how many rows come before the row that pandas cannot read, and what is wrong with it.

    Args:
        reason: the error message of pandas, which has the number of the row.
    """
    counted = re.search(r"(line|row) (\d+)", reason)
    if counted is None:
        return (
            0,
            f"begins no table ({reason.strip()}); give a table with a header and a row a trial",
        )
    number = int(counted[2])
    if counted[1] == "row":  # pandas counts rows from 0 in this error, and from 1 in the other
        return number, "has a quotation mark that is not closed; close it, or delete it"
    return number - 1, (
        "has more fields than the header has names; give each column a name, and delete lines above the header"
    )


def _parse_json(path: Path, text: str) -> pd.DataFrame:
    """Read JSON objects into a data frame with one row per object, every cell a text.

    Numbers stay as they are written in the text.

    Args:
        path: the file, for error messages.
        text: JSON objects, one per line or in one list; or a log of Inspect, whose samples are the
            objects.
    """
    import pandas as pd

    objects: list[dict[str, Any]] = []
    places: list[str] = []
    kind = "object"
    as_written: dict[str, Any] = {"parse_float": str, "parse_int": str, "parse_constant": str}
    try:
        whole = json_in(text, **as_written)  # None if the text is not one JSON value
        if isinstance(whole, dict) and isinstance(whole.get("samples"), list):
            whole = [_read_sample(sample) for sample in whole["samples"]]
            kind = "sample"
        if isinstance(whole, list):
            objects = whole
            places = [f"{kind} {number}" for number in range(1, len(objects) + 1)]
        else:
            for number, line in _number_lines(text):
                places.append(f"line {number}")
                objects.append(json.loads(line, **as_written))
    except (ValueError, RecursionError) as error:
        # The error's own line number counts from the line that was parsed: only its reason is shown.
        reason = str(error).partition(": line")[0]
        wrong = f"{str(path)!r} must hold a JSON object in every line; {places[-1]} holds none"
        raise InputError(f"{wrong} ({reason})") from None
    are_objects = objects and all(isinstance(row, dict) for row in objects)
    require(are_objects, f"{str(path)!r} must hold JSON objects, a row a trial")
    texts = [{str(name): _write_json(value) for name, value in row.items()} for row in objects]
    return pd.DataFrame(texts, index=pd.Index(places, dtype=object), dtype=object).fillna("")


def _read_sample(sample: Any) -> Any:
    """Return the fields of an Inspect sample that become columns: its metadata, and "id", "epoch",
    "target" and "messages". A value that is not a mapping is returned unchanged.
    """
    if not isinstance(sample, dict):
        return sample
    metadata = sample.get("metadata")
    metadata_fields = metadata if isinstance(metadata, dict) else {}
    return {**metadata_fields, **{name: sample.get(name) for name in _SAMPLE_FIELDS}}


def _write_json(value: Any) -> str:
    """Convert a JSON value to the text of a cell: "" for null, "1" or "0" for a boolean, JSON for
    lists and objects.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else json.dumps(value)


def _clean(cells: pd.DataFrame) -> pd.DataFrame:
    """Clean a table: strip spaces from names and cells, replace empty cells and words such as "NA"
    by NaN, and drop columns without a name, such as a data frame's index.
    """
    cells = cells.set_axis([str(name).strip() for name in cells.columns], axis=1)
    named = cells.loc[:, cells.columns != ""]
    return named.map(_clean_cell).astype(object)  # an empty column would be of floats


def _clean_cell(cell: Any) -> Any:
    text = str(cell).strip()
    return np.nan if text in _EMPTY_WORDS else text

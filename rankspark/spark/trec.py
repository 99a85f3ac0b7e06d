"""TREC run and qrels files: lines of text -> rows, malformed lines kept by file and number.

    run     topic iteration item rank score tag      (more words after the tag are passed over)
    qrels   topic iteration item grade

Lines that are blank or begin with # are comments; a line may end in CRLF. Topics and items are
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Layout:
    """The columns of a kind of file.

    Attributes:
        columns: SQL over the array `word` by name.
        number: the column that must be a number.
        n_words: how many words a line has at least.
    """

    columns: dict[str, str]
    number: str
    n_words: int


RUN = Layout(
    {
        "query_id": "word[0]",
        "iteration": "word[1]",
        "item_id": "word[2]",
        "rank": "word[3]",
        "score": "try_cast(word[4] as double)",
        "tag": "word[5]",
    },
    number="score",
    n_words=6,
)
QRELS = Layout(
    {
        "query_id": "word[0]",
        "iteration": "word[1]",
        "item_id": "word[2]",
        "grade": "try_cast(word[3] as double)",
    },
    number="grade",
    n_words=4,
)


def lines(spark: SparkSession, path: str | Sequence[str] | None, layout: Layout) -> DataFrame:
    """Read files, plain or compressed; each is read whole, since only so do lines have numbers.

    Returns:
        the layout's columns and `malformed`: null, or file, number and text of a line that does not
        fit, whose other columns are null.
    """
    paths = [path] if isinstance(path, str) else list(path or ())
    files = spark.read.text(paths, wholetext=True)
    numbered = files.select(
        F.expr("element_at(split(_metadata.file_path, '/'), -1)").alias("file"),
        F.posexplode(F.split("value", "\r?\n")).alias("number", "line"),
    ).select("file", "number", F.expr("trim(regexp_replace(line, '\\\\s+', ' '))").alias("line"))
    words = numbered.where("line != '' and line not like '#%'").withColumn(
        "word", F.split("line", " ")
    )
    enough = f"size(word) >= {layout.n_words}"
    fits = f"{enough} and {layout.columns[layout.number]} is not null"
    columns = [
        F.expr(f"case when {enough} then {sql} end").alias(name)
        for name, sql in layout.columns.items()
    ]
    malformed = F.expr(f"case when not ({fits}) then concat(file, ':', number + 1, ': ', line) end")
    return words.select(*columns, malformed.alias("malformed"))

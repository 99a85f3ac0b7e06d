"""Reading what was published, without Spark."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

KEYS = pa.schema([("date", pa.string()), ("experiment", pa.string())])


def read(folder: Path, name: str) -> pd.DataFrame:
    partitioning = ds.partitioning(KEYS, flavor="hive")
    return ds.dataset(folder / name, partitioning=partitioning).to_table().to_pandas()


def values(folder: Path, measure: str, *keys: str) -> dict[object, float]:
    """The overall mean of a measure by the given columns of `metrics`."""
    metrics = read(folder, "metrics")
    metrics = metrics[(metrics.measure == measure) & (metrics.slice_name == "overall")]
    index = [tuple(row) if len(keys) > 1 else row[0] for row in metrics[list(keys)].to_numpy()]
    return dict(zip(index, metrics["mean"], strict=True))

"""A Parquet file is read whole through pyarrow and turned into a table of pandas."""

import pyarrow.parquet as pq

frame = pq.read_table("events.parquet").to_pandas()
frame["ratio"] = frame["c0"] / (frame["c1"] + 1)
print("rows", len(frame), frame["ratio"].mean())

"""Every line of a JSON file becomes a dictionary of its own in one list."""

import json

with open("events.jsonl") as file:
    records = [json.loads(line) for line in file]
labels = [record["label"] for record in records]
print("records", len(records), sum(labels))

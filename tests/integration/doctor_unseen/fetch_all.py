"""Ratings come out of SQLite with fetchall and become a frame."""

import sqlite3

import numpy as np
import pandas as pd


def query(db, sql):
    con = sqlite3.connect(db)
    try:
        cur = con.cursor()
        cur.execute(sql)
        cols = [d[0] for d in cur.description]
        return pd.DataFrame(cur.fetchall(), columns=cols)
    finally:
        con.close()


ratings = query("ratings.db", "SELECT user, item, stars, comment FROM ratings")
mu = ratings["stars"].mean()
bias = ratings.groupby("item")["stars"].mean() - mu
users = np.zeros(ratings["user"].max() + 1)
for _ in range(3):
    users += 0.01
print("mean", mu, "items", len(bias))

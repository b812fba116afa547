"""Documents are scored with joblib, and each call is given all of them."""

from collections import Counter

from joblib import Parallel, delayed


def similarity(documents, i):
    mine = set(documents[i].split())
    return max((len(mine & set(other.split())), j) for j, other in enumerate(documents[:500]) if j != i)


def make_documents(n):
    return [f"document {k} speaks of topic{k % 37} and of item{k % 101} " * 4 for k in range(n)]


if __name__ == "__main__":
    documents = make_documents(350_000)
    print("loaded", len(documents), flush=True)
    results = Parallel(n_jobs=4, batch_size=1)(delayed(similarity)(documents, i) for i in range(40))
    print(Counter(score for score, _ in results).most_common(3))

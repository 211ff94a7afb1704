"""word2vec: skip-gram and CBOW with negative sampling.

`step` is the arithmetic, `deal` makes steps of text, `training` lets threads do them, `vocabulary` counts words over several
texts, `estimator` is what a user sees.
"""

from plesio.sparse.keyed_vectors import KeyedVectors
from plesio.sparse.skipgram.estimator import SkipGram

__all__ = ["KeyedVectors", "SkipGram"]

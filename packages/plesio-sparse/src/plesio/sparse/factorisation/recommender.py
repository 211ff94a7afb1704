"""Predictions, recommendations and scores of a fitted factorisation."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.sparse.factorisation.layout import Seen
from plesio.sparse.factorisation.ratings import column, triples
from plesio.sparse.factorisation.side import Side

if TYPE_CHECKING:
    from torch import nn

AT_ONCE = 1 << 16  # pairs predicted in one go: their factors fit a cache
USERS_JUDGED = 2000  # how many users' rankings `auc` looks at, at most


class Recommender:
    """The two sides of the matrix; factors and biases are of ratings brought to mean 0 and deviation 1."""

    def __init__(self, factors: int) -> None:
        self._users, self._items = Side(factors, "users"), Side(factors, "items")
        self._pairs: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = []
        self._seen: tuple[int, Seen] | None = None
        self._scale, self.mean_ = 1.0, 0.0

    @property
    def user_factors_(self) -> NDArray[np.float32]:
        """(users, factors); a prediction is mean_ + user_bias_ + item_bias_ + the product of the factors."""
        return self._users.factors * np.float32(math.sqrt(self._scale))

    @property
    def item_factors_(self) -> NDArray[np.float32]:
        """(items, factors)."""
        return self._items.factors * np.float32(math.sqrt(self._scale))

    @property
    def user_bias_(self) -> NDArray[np.float32]:
        """(users,)."""
        return self._users.biases * np.float32(self._scale)

    @property
    def item_bias_(self) -> NDArray[np.float32]:
        """(items,)."""
        return self._items.biases * np.float32(self._scale)

    @property
    def user_ids_(self) -> NDArray[Any]:
        """Whose each row of `user_factors_` is."""
        return self._users.ids.names

    @property
    def item_ids_(self) -> NDArray[Any]:
        """Whose each row of `item_factors_` is."""
        return self._items.ids.names

    def predict(self, users: Any, items: Any) -> Any:
        """What each of `users` would give the item beside it, as float32; under "bpr" a score, larger for what is liked more.

        Whoever was never met counts as average: the prediction falls back to the other's bias, or to the mean. For one user
        and one item, not in lists, it is one number.
        """
        if np.ndim(users) == np.ndim(items) == 0:
            return self.predict([users], [items])[0]
        who, what = self._rows(users, items)
        users_, items_ = self._users, self._items
        told = np.empty(len(who), np.float32)
        for start in range(0, len(who), AT_ONCE):
            user, item = who[start : start + AT_ONCE], what[start : start + AT_ONCE]
            bias = np.where(user < 0, 0, users_.biases[user]) + np.where(item < 0, 0, items_.biases[item])
            dot = np.einsum("ij,ij->i", users_.factors[user], items_.factors[item])
            told[start : start + AT_ONCE] = bias + np.where((user < 0) | (item < 0), 0, dot)
        return told * np.float32(self._scale) + np.float32(self.mean_)

    def recommend(
        self, user: Any, n: int = 10, *, exclude_seen: bool = True
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The ids of the `n` items that this user would like best, and their scores, best first.

        Args:
            exclude_seen: leave out those the user has rated; there may be fewer than `n` then.

        Raises ConfigurationError for more than one user.
        """
        self._check_fitted()
        if np.ndim(user) > 0:
            raise ConfigurationError(
                f"user={user!r}: allowed is one user; for more, [model.recommend(user) for user in users]."
            )
        row = int(self._users.rows(column([user], "user"))[0])
        seen = self._seen_items().of(row) if exclude_seen and row >= 0 else np.zeros(0, np.uint32)
        scores = self._ranking(row)  # after `seen`: it has at least these items, if another thread folds some in now
        scores[seen] = -np.inf
        best = np.argsort(-scores, kind="stable")[:n]
        best = best[scores[best] > -np.inf]
        return self._items.ids.names[best], scores[best]

    def rmse(self, users: Any, items: Any = None, ratings: Any = None) -> float:
        """The root of the mean squared error on these ratings, given as to `fit`."""
        users, items, ratings = triples(users, items, ratings)
        if ratings is None:
            raise ConfigurationError("rmse needs the ratings.")
        errors = self.predict(users, items).astype(np.float64) - ratings
        return float(np.sqrt(np.mean(errors**2)))

    def auc(self, users: Any, items: Any = None, ratings: Any = None) -> float:
        """How often an item a user liked is ranked above one the user was not seen with: the mean over users.

        Of more than 2,000 users that many are judged, evenly picked.
        """
        users, items, _ = triples(users, items, ratings)
        who, what = self._rows(users, items)
        pairs = (who >= 0) & (what >= 0)
        who, what = who[pairs], what[pairs]
        judged = np.unique(who)
        shares = [
            self._share_above(user, what[who == user]) for user in judged[:: -(-len(judged) // USERS_JUDGED) or 1]
        ]
        return float(np.mean(shares)) if shares else float("nan")

    def _share_above(self, user: int, liked: NDArray[np.int64]) -> float:
        scores = self._ranking(user)
        others = self._items.met.copy()
        others[liked] = False
        others[self._seen_items().of(user)] = False
        ranked = np.sort(scores[others])
        return float(np.mean(np.searchsorted(ranked, scores[liked]))) / max(len(ranked), 1)

    def _ranking(self, user: int) -> NDArray[np.float32]:
        """A score for every item, -inf for rows that are nobody's; those of an unknown user are the biases."""
        items = copy(self._items)  # as many as there are now
        scores = items.biases.copy()
        if user >= 0:
            scores += items.factors @ self._users.factors[user] + self._users.biases[user]
        scores = scores * np.float32(self._scale) + np.float32(self.mean_)
        scores[~items.met] = -np.inf
        return scores

    def _rows(self, users: Any, items: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._check_fitted()
        who, what = self._users.rows(column(users, "users")), self._items.rows(column(items, "items"))
        if len(who) != len(what):
            raise ConfigurationError(f"there are {len(who)} users and {len(what)} items; give an item for each user.")
        return who, what

    def _check_fitted(self) -> None:
        if not self._pairs:
            raise ConfigurationError("this factorisation has learnt nothing yet; call fit first.")

    def _seen_items(self) -> Seen:
        """Which items each user has, sorted when first needed."""
        if self._seen is None or self._seen[0] != len(self._pairs):
            users, items = (np.concatenate(rows) for rows in zip(*self._pairs, strict=True))
            self._seen = len(self._pairs), Seen(users, items, (len(self._users), len(self._items)))
        return self._seen[1]

    def _note(self, users: NDArray[Any], items: NDArray[Any]) -> None:
        """Pairs that nothing was learnt from by sweeps. Before the others: the last are those of the last fit."""
        sorted_, self._seen = self._seen, None
        self._pairs.insert(0, (users.astype(np.uint32), items.astype(np.uint32)))
        if sorted_ is not None and sorted_[0] == len(self._pairs) - 1:  # all others need not be sorted anew
            sorted_[1].add(users, items)
            self._seen = len(self._pairs), sorted_[1]

    def to_torch(self) -> nn.Module:
        """The same model as a `torch.nn.Module`: rows of users and of items (not ids) to ratings, trained densely.

        A row's number is its place in `user_ids_` and `item_ids_`.
        """
        import torch

        from plesio.sparse.factorisation.dense import DenseFactorization

        self._check_fitted()
        made = DenseFactorization(len(self._users), len(self._items), self.user_factors_.shape[1], self.mean_)
        biases = self.user_bias_[:, None], self.item_bias_[:, None]
        tables = zip(made.parameters(), (self.user_factors_, self.item_factors_, *biases), strict=True)
        with torch.no_grad():
            for weight, table in tables:
                weight.copy_(torch.from_numpy(table))
        return made

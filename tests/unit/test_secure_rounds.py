"""Secure sums: whoever drops out, and when, the head gets the sum of those whose numbers came, and of no site anything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

import plesio as ps
from plesio.protocol.coding import ProtocolError
from plesio.secure_sums import noise, shamir
from plesio.secure_sums.head import Phase, SecureHead
from plesio.secure_sums.keys import add_mask, signed
from plesio.secure_sums.noise import SiteNoise
from plesio.secure_sums.numbers import UNITS, to_numbers, to_words
from plesio.secure_sums.site import Identities, Site
from plesio.secure_sums.words import (
    AllKeys,
    ForSite,
    Keys,
    Masked,
    Outside,
    RoundGivenUp,
    RoundOpened,
    Shares,
    SitesCame,
    Told,
    Wait,
)
from support.long_forms import examples

CLIP = 2.0
UNIT = CLIP * 2.0**-16
SECURE = ps.SecureSums(threshold=5, clip=CLIP)


class Sites:
    """Sites and their head, with all that the head hears; `drops`: by phase, the sites that are gone before they speak in it."""

    def __init__(self, sites: int = 8, secure: ps.SecureSums = SECURE, words: int = 40) -> None:
        rng = np.random.default_rng(sites)
        self.head, self.secure, self.limit = SecureHead(secure), secure, secure.clip
        self.identities = [Identities(os.urandom) for _ in range(sites)]
        self.samples = {site: 10 + 7 * site for site in range(sites)}
        self.moved = {site: rng.normal(scale=0.7, size=words).astype(np.float32) for site in range(sites)}
        self.heard: dict[Phase, dict[int, Any]] = {phase: {} for phase in Phase}
        self.masked: dict[int, np.ndarray] = {}
        self.sum = np.zeros(words, np.uint32)
        self.liars: set[int] = set()
        """Those that may be outside."""

    def round(self, drops: dict[Phase, set[int]] | None = None) -> np.ndarray | str:
        """The mean of those whose numbers came, or why there is none."""
        drops = drops or {}
        self.sites = {
            site: Site(site, self.samples[site], self.secure, self.identities[site], os.urandom)
            for site in self.samples
        }
        self.alive = set(self.sites)
        self.sum[:] = 0
        for phase, say in zip(Phase, (self._keys, self._shares, self._numbers, self._opened), strict=True):
            self.alive -= drops.get(phase, set())
            self.heard[phase] = {}
            for site in sorted(self.alive):
                said = self.heard[phase][site] = say(site)
                if not self.head.hear(site, said):
                    assert site in self.liars
            self.alive -= self.head._outside
            if phase is not Phase.OPEN:
                self.told = self.head.close()
                if self.head.why:
                    assert all(isinstance(one, RoundGivenUp) for one in self.told.values())
                    return self.head.why
        share = self.head.share
        if why := self.head.unmask(self.sum):
            return why
        mean = np.empty(len(self.sum), np.float32)
        to_numbers(self.sum, self.limit, share, mean)
        return mean

    def _keys(self, site: int) -> Keys:
        return self.sites[site].keys

    def _shares(self, site: int) -> Any:
        told = self.told[site]
        assert isinstance(told, AllKeys)
        return self.sites[site].shares(told)

    def _numbers(self, site: int) -> Masked | Outside:
        told = self.told[site]
        assert isinstance(told, ForSite)
        if unread := self.sites[site].take(told):
            return Outside(unread)
        numbers = self.moved[site].copy()
        self._to_words(numbers, self.sites[site].weight)
        self.sites[site].mask(numbers)
        self.masked[site] = numbers.view(np.uint32)
        np.add(self.sum, self.masked[site], out=self.sum)
        return Masked()

    def _to_words(self, numbers: np.ndarray, weight: float) -> None:
        to_words(numbers, CLIP, weight)

    def _opened(self, site: int) -> RoundOpened:
        told = self.told[site]
        assert isinstance(told, SitesCame)
        return self.sites[site].open(told)

    def mean(self, came: set[int]) -> np.ndarray:
        """As it is computed by who sees all numbers."""
        total = sum(self.samples[site] for site in came)
        return sum(self.samples[site] / total * self.moved[site].clip(-CLIP, CLIP).astype(float) for site in came)


# Shares of a secret


@given(some.data(), some.binary(min_size=32, max_size=32), some.integers(2, 9))
def test_any_threshold_parts_give_the_secret_back_and_one_less_do_not(data: Any, secret: bytes, threshold: int) -> None:
    coefficients = data.draw(
        some.lists(some.integers(1, shamir.PRIME - 1), min_size=threshold - 1, max_size=threshold - 1)
    )
    places = data.draw(some.sets(some.integers(1, 200), min_size=threshold, max_size=threshold + 4))
    parts = shamir.split(secret, places, coefficients)
    chosen = data.draw(some.permutations(sorted(places)))[:threshold]
    assert shamir.join({place: parts[place] for place in chosen}) == secret
    assert shamir.join({place: parts[place] for place in chosen[:-1]}) != secret  # but for a chance of 2^-256


def test_fewer_parts_than_the_threshold_go_with_every_secret() -> None:
    """For whatever secret there is a polynomial through one part of two."""
    part = shamir.split(b"a" * 32, [3], [12345])[3]
    other = (int.from_bytes(part) - int.from_bytes(b"b" * 32)) * pow(3, -1, shamir.PRIME) % shamir.PRIME
    assert shamir.split(b"b" * 32, [3], [other])[3] == part


def test_the_field_is_prime() -> None:
    """By Miller and Rabin."""
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, odd, shamir.PRIME)
        assert x in (1, shamir.PRIME - 1) or any(pow(x, 2**k, shamir.PRIME) == shamir.PRIME - 1 for k in range(twos))


# The sum


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(some.lists(some.sampled_from([None, *Phase]), min_size=8, max_size=8))
def test_the_sum_is_right_or_given_up_and_of_no_site_two_secrets_become_known(gone: list[Phase | None]) -> None:
    """`gone`: in which phase each site is lost, if it is."""
    sites = Sites()
    drops = {phase: {site for site, when in enumerate(gone) if when is phase} for phase in Phase}
    mean = sites.round(drops)
    left = [{site for site, when in enumerate(gone) if when is None or when > phase} for phase in Phase]
    enough = all(len(one) >= SECURE.threshold for one in left)
    assert isinstance(mean, str) is not enough
    if isinstance(mean, str):
        assert str(SECURE.threshold) in mean
    else:
        assert np.abs(mean - sites.mean(left[Phase.SUM])).max() < UNIT
    opened = list(sites.heard[Phase.OPEN].values())
    for site in range(8):
        seeds, keys = sum(site in one.seeds for one in opened), sum(site in one.keys for one in opened)
        assert min(seeds, keys) == 0
        assert enough or max(seeds, keys) < SECURE.threshold
    assert not isinstance(sites.round(), str), "the next round goes on"


@pytest.mark.parametrize("phase", Phase)
def test_two_of_eight_sites_drop_out_in_each_phase(phase: Phase) -> None:
    sites = Sites(words=10_000)
    mean = sites.round({phase: {2, 7}})
    came = set(range(8)) if phase is Phase.OPEN else set(range(8)) - {2, 7}
    assert np.abs(mean - sites.mean(came)).max() < UNIT


def test_the_largest_numbers_that_clip_allows_do_not_wrap_around() -> None:
    sites = Sites()
    for site in sites.moved:
        sites.moved[site][:] = [-9.0, 9.0] * 20
    assert list(sites.round()) == pytest.approx([-CLIP, CLIP] * 20, abs=UNIT)


def test_a_site_without_samples_takes_part_and_weighs_nothing() -> None:
    sites = Sites()
    sites.samples[3] = 0
    assert np.abs(sites.round() - sites.mean(set(range(8)) - {3})).max() < UNIT


def test_a_sum_that_few_sites_add_to_is_not_opened() -> None:
    """Of the others it is known that they add nothing, so it is the sum of the few."""
    sites = Sites()
    sites.samples |= dict.fromkeys((0, 1, 2, 3), 0)
    assert sites.round() == "4 of 8 sites have samples, and it takes 5"
    sites.samples[0] = 4
    assert not isinstance(sites.round(), str)
    assert sites.round({Phase.SUM: {7}}) == "4 of 7 sites have samples, and it takes 5"
    sites, told = at(Phase.OPEN)
    sites.sites[1]._others = {site: replace(keys, samples=site // 4) for site, keys in sites.sites[1]._others.items()}
    with pytest.raises(ProtocolError, match="4 of 8 sites have samples"):
        sites.sites[1].open(told[1])  # type: ignore[arg-type]


def test_what_the_head_hears_of_a_site_says_nothing_of_its_numbers() -> None:
    """Masked words are uniform, and the same numbers are masked to others each time; a late one stays masked by the seed."""
    sites = Sites(words=50_000)
    sites.round()
    first = dict(sites.masked)
    sites.round()
    for site, words in sites.masked.items():
        assert (words == first[site]).mean() < 1e-3
        counts = np.bincount(words >> 24, minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 400  # chi-squared of 255: 5 sigma is 368
        plain = sites.moved[site].copy()
        to_words(plain, CLIP, sites.sites[site].weight)
        assert abs(np.corrcoef(words.astype(float), plain.view(np.int32).astype(float))[0, 1]) < 0.03


def test_numbers_that_come_late_stay_masked_by_the_seed_of_their_site() -> None:
    """The head can take off all that site 0 had in common with others, and sees noise."""
    sites = Sites(words=5000)
    sites.round({Phase.SUM: {0}})
    sites.told = {0: ForSite({site: said.sealed[0] for site, said in sites.heard[Phase.SHARES].items()})}
    sites._numbers(0)
    words = sites.masked[0].copy()
    for site in range(1, 8):  # as it can be computed from the key of site 0, which the others opened
        key = sites.sites[0]._agreed(sites.sites[0]._masking, sites.sites[site].keys.masking, b"mask")
        add_mask(words, key, -1)
    plain = sites.moved[0].copy()
    to_words(plain, CLIP, sites.sites[0].weight)
    assert (words == plain.view(np.uint32)).mean() < 1e-3
    add_mask(words, sites.sites[0]._seed, -1)
    assert (words == plain.view(np.uint32)).all()


# Noise

PRIVACY = ps.Privacy(clip=1.5, noise=0.8, delta=1e-5)


class NoisySites(Sites):
    """Each adds its share of the noise, and counts alike."""

    def __init__(self, words: int = 40, privacy: ps.Privacy = PRIVACY) -> None:
        super().__init__(words=words)
        self.noise = SiteNoise(self.secure, privacy)
        self.limit, self.samples = self.noise.limit, dict.fromkeys(self.samples, 1)

    def _to_words(self, numbers: np.ndarray, weight: float) -> None:
        self.noise.to_words(numbers, weight, os.urandom(32))


@pytest.mark.parametrize("dropped", [set(), {2, 7}, {0, 1, 5}])
def test_the_sum_has_the_noise_that_is_said_or_more(dropped: set[int]) -> None:
    """Of 8 sites with a threshold of 5: as much as of 5 where 3 dropped out. 50,000 numbers: 2% are six deviations."""
    sites = NoisySites(words=50_000)
    mean = sites.round({Phase.SUM: dropped})
    came = set(range(8)) - dropped
    added = mean * len(came) - sum(clipped(sites.moved[site]) for site in came)
    said = PRIVACY.noise * PRIVACY.clip
    assert added.std() == pytest.approx(said * (len(came) / SECURE.threshold) ** 0.5, rel=0.02)
    assert added.std() > 0.98 * said
    assert abs(added.mean()) < 6 * added.std() / len(added) ** 0.5


def clipped(moved: np.ndarray) -> np.ndarray:
    cut = moved.clip(-CLIP, CLIP).astype(float)
    return cut * min(1.0, PRIVACY.clip / np.linalg.norm(cut))


def without_noise(key: bytes) -> Iterator[np.ndarray]:
    return repeat(np.zeros(noise.NORMALS))


@settings(max_examples=examples(20), deadline=None)
@given(some.lists(some.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), some.floats(1e-3, 1e3))
def test_no_site_moves_the_sum_further_than_the_norm(moved: list[float], clip: float) -> None:
    site = SiteNoise(SECURE, ps.Privacy(clip, 1.0, 1e-5))
    numbers = np.array(moved, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "normals", without_noise)
        site.to_words(numbers, 1 / 8, bytes(32))
    sent = numbers.view(np.int32) * (8 * site.limit / UNITS)
    cut = np.array(moved).clip(-CLIP, CLIP)
    assert np.linalg.norm(sent) <= clip * (1 + 1e-12)
    assert np.abs(sent - cut * min(1.0, clip / (np.linalg.norm(cut) or 1.0))).max() <= 8 * site.limit / UNITS + 1e-12


def test_sites_count_alike_and_each_is_scaled_to_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "normals", without_noise)
    sites = NoisySites()
    sites.moved[3] /= 1e3  # is below the norm, and stays as it is
    mean = sites.round({Phase.SUM: {6}})
    assert np.abs(mean - sum(clipped(sites.moved[site]) for site in range(8) if site != 6) / 7).max() < UNIT


def test_noise_is_normal_and_another_each_time() -> None:
    """262,144 numbers: their moments are known to 1 / 512 of a deviation."""
    numbers, others = (np.concatenate(list(islice(noise.normals(os.urandom(32)), 16))) for _ in range(2))
    assert numbers.mean() == pytest.approx(0.0, abs=0.012)
    assert numbers.var() == pytest.approx(1.0, abs=0.017)
    assert (numbers**4).mean() == pytest.approx(3.0, abs=0.12)
    assert np.corrcoef(numbers, others)[0, 1] == pytest.approx(0.0, abs=0.012)
    assert np.corrcoef(numbers[1:], numbers[:-1])[0, 1] == pytest.approx(0.0, abs=0.012)
    assert (np.abs(numbers) < 1.0).mean() == pytest.approx(0.68269, abs=0.006)
    assert (-2 * np.log(0.5 * 2.0**-64)) ** 0.5 < noise.FURTHEST


# What is refused


def test_a_key_that_changes_within_the_life_of_a_process_is_refused() -> None:
    sites = Sites()
    sites.round()
    sites.identities[3], sites.liars = Identities(os.urandom), {3}
    assert np.abs(sites.round() - sites.mean(set(range(8)) - {3})).max() < UNIT
    assert [*sites.head.suspects.news] == [
        "site 3 is left out: its process signs with another key than in the rounds before"
    ]
    sites.head.suspects._of_life.clear()  # a head that lets it pass
    with pytest.raises(ProtocolError, match="the key of site 3 is another than in the rounds before"):
        sites.round()
    sites = Sites()
    sites.round()
    assert [one.anew for one in sites.identities] == [[]] * 8
    sites.identities[3], sites.head.lives[3] = Identities(os.urandom), 1  # another process has its seat
    assert not isinstance(sites.round(), str)
    assert [one.anew for one in sites.identities] == [[3]] * 3 + [[]] + [[3]] * 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda keys: replace(keys, masking=os.urandom(32)), "the keys of site 2 are not signed by its process"),
        (lambda keys: replace(keys, samples=10**6), "the keys of site 2 are not signed by its process"),
    ],
)
def test_keys_that_the_head_changed_are_refused(change: Callable[[Keys], Keys], why: str) -> None:
    sites, all_told = at(Phase.SHARES)
    told = all_told[1]
    assert isinstance(told, AllKeys)
    with pytest.raises(ProtocolError, match=why):
        sites.sites[1].shares(AllKeys({**told.keys, 2: change(told.keys[2])}))
    with pytest.raises(ProtocolError, match="another key of this site, or none"):
        sites.sites[1].shares(AllKeys({site: keys for site, keys in told.keys.items() if site != 1}))
    with pytest.raises(ProtocolError, match="4 sites, and a round takes 5"):
        sites.sites[1].shares(AllKeys({site: keys for site, keys in told.keys.items() if site < 4}))


class Stopped(Exception):
    pass


def at(phase: Phase) -> tuple[Sites, dict[int, Told]]:
    """A round as it is when this phase begins, and what was told."""
    sites = Sites()
    name = ("_keys", "_shares", "_numbers", "_opened")[phase]

    def stop(site: int) -> None:
        raise Stopped

    setattr(sites, name, stop)
    with pytest.raises(Stopped):
        sites.round()
    return sites, dict(sites.told)


def test_a_site_opens_one_sum_once_and_none_below_the_threshold() -> None:
    for came, why in (
        ((1, 2, 3, 4), "4 sites have sent their numbers, the threshold is 5"),
        ((0, 2, 3, 4, 5), "no sum"),
    ):
        sites, _ = at(Phase.OPEN)
        with pytest.raises(ProtocolError, match=why):
            sites.sites[1].open(SitesCame(came))
    sites, told = at(Phase.OPEN)
    sites.sites[1].open(told[1])  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="asks for what no sum needs"):
        sites.sites[1].open(SitesCame((1, 2, 3, 4, 5)))


def test_parts_that_were_changed_are_found_out() -> None:
    sites, told = at(Phase.SUM)
    mine = told[1]
    assert isinstance(mine, ForSite)
    changed = {2: bytes(146), 3: mine.sealed[3][:-64] + bytes(64)}
    assert sites.sites[1].take(ForSite({**mine.sealed, **changed})) == (2, 3)
    sites, told = at(Phase.SUM)
    mine = told[1]
    assert isinstance(mine, ForSite)
    with pytest.raises(ProtocolError, match="3 sites share keys, the threshold is 5"):
        sites.sites[1].take(ForSite({site: mine.sealed[site] for site in (1, 2, 3)}))


# Sites that lie


def wrong_parts(said: RoundOpened) -> RoundOpened:
    """Of a seed, and of a key where one is asked for."""
    return RoundOpened({**said.seeds, 2: bytes(33)}, dict.fromkeys(said.keys, bytes(33)))


def lying(sites: Sites, phase: Phase, liars: set[int], lie: Callable[[Any], Any]) -> None:
    name = ("_keys", "_shares", "_numbers", "_opened")[phase]
    honest = getattr(sites, name)
    setattr(sites, name, lambda site: lie(honest(site)) if site in liars else honest(site))
    sites.liars = set(range(8))


@pytest.mark.parametrize("dropped", [set(), {7}])
@pytest.mark.parametrize("liars", [{0}, {6}, {0, 1}])
def test_wrong_parts_are_found_out_whoever_says_them_and_the_others_suffice(liars: set[int], dropped: set[int]) -> None:
    sites = Sites()
    lying(sites, Phase.OPEN, liars, wrong_parts)
    came = set(range(8)) - dropped
    assert np.abs(sites.round({Phase.SUM: dropped}) - sites.mean(came)).max() < UNIT
    assert [*sites.head.suspects.news] == [
        f"site {liar} lies, and is left out from here on: it opens a sum with other parts than it was given"
        for liar in sorted(liars)
    ]
    assert np.abs(sites.round() - sites.mean(set(range(8)) - liars)).max() < UNIT


def test_with_too_many_wrong_parts_the_sum_is_given_up_and_no_honest_site_is_named() -> None:
    sites = Sites()
    lying(sites, Phase.OPEN, {0, 2, 5, 7}, wrong_parts)
    assert sites.round() == "4 of 8 sites opened the sum with right parts, and it takes 5"
    assert [one[:6] for one in sites.head.suspects.news] == ["site 0", "site 2", "site 5", "site 7"]
    assert sites.round() == "4 sites, and a round takes 5"


def test_a_site_whose_parts_are_of_no_secret_is_named() -> None:
    """Each is what it said to the head, so nobody notices before the sum is opened."""
    sites = Sites()
    lying(sites, Phase.SHARES, {3}, lambda said: replace(said, commitment=bytes(32)))
    assert sites.round() == "the parts of its seed that site 3 gave the others do not fit"
    assert np.abs(sites.round() - sites.mean(set(range(8)) - {3})).max() < UNIT


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (lambda keys: replace(keys, samples=keys.samples + 1), "not signed by its process"),
        (lambda keys: replace(keys, identity=bytes(32)), "not signed by its process"),
        (lambda keys: low(keys, "sealing"), "nobody can agree on a key with"),
        (lambda keys: low(keys, "masking"), "nobody can agree on a key with"),
    ],
)
def test_a_site_whose_keys_are_none_is_left_out(lie: Callable[[Keys], Keys], why: str) -> None:
    sites = Sites()
    lying(sites, Phase.KEYS, {4}, lambda keys: lie(replace(keys)))
    LOW["identity"] = sites.identities[4].own
    for _ in range(2):
        assert np.abs(sites.round() - sites.mean(set(range(8)) - {4})).max() < UNIT
    (news,) = sites.head.suspects.news
    assert news.startswith("site 4 is left out")
    assert why in news


LOW: dict[str, Any] = {}


def low(keys: Keys, which: str) -> Keys:
    return signed(LOW["identity"], 4, replace(keys, **{which: bytes(32)}))


def unreadable(whose: set[int]) -> Callable[[Shares], Shares]:
    return lambda said: replace(
        said, sealed={site: os.urandom(146) if site in whose else one for site, one in said.sealed.items()}
    )


def test_a_site_that_cannot_read_its_parts_sits_the_round_out_and_both_are_named() -> None:
    """The head cannot tell which of the two lies."""
    sites = Sites()
    lying(sites, Phase.SHARES, {4}, unreadable({0}))
    for _ in range(2):
        assert np.abs(sites.round() - sites.mean(set(range(1, 8)))).max() < UNIT
    assert [*sites.head.suspects.news] == ["site 0 cannot read what site 4 sealed for it: one of the two lies"]


def test_a_site_that_more_are_at_odds_with_than_may_lie_is_left_out() -> None:
    sites = Sites()
    lying(sites, Phase.SHARES, {4}, unreadable(set(range(8)) - {4}))
    assert sites.round() == "1 of 8 sites sent their numbers, and it takes 5"
    (lies,) = [one for one in sites.head.suspects.news if "lies, and" in one]
    assert lies == "site 4 lies, and is left out from here on: it is at odds with the sites 0, 1, 2, 3"
    assert np.abs(sites.round() - sites.mean(set(range(8)) - {4})).max() < UNIT


def test_three_of_eight_sites_cannot_have_an_honest_one_left_out() -> None:
    sites = Sites()
    honest, sites.liars = sites._numbers, {5, 6, 7}
    sites._numbers = lambda site: Outside((0,)) if site in sites.liars else honest(site)  # type: ignore[method-assign]
    for _ in range(3):
        assert np.abs(sites.round() - sites.mean(set(range(5)))).max() < UNIT
    assert not [one for one in sites.head.suspects.news if "lies, and" in one]


def test_the_head_hears_nobody_out_of_turn() -> None:
    sites, _ = at(Phase.SHARES)
    with pytest.raises(ProtocolError, match="site 2 said Masked in the phase shares"):
        sites.head.hear(2, Masked())
    assert not sites.head.hear(9, Site(9, 5, SECURE, Identities(os.urandom), os.urandom).keys), "it comes too late"
    assert not sites.head.hear(3, Outside())
    for site in (0, 1, 2, 4, 5, 6, 7):
        sites.head.hear(site, sites.sites[site].shares(sites.told[site]))  # type: ignore[arg-type]
    told = sites.head.close()
    assert {site for site, one in told.items() if isinstance(one, Wait)} == {3, 9}
    with pytest.raises(ProtocolError, match="site 3 said Masked"):
        sites.head.hear(3, Masked())


def test_words_of_other_sites_than_are_in_the_round_are_refused() -> None:
    sites, told = at(Phase.SHARES)
    said = sites.sites[1].shares(told[1])  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="site 1 said Shares of other sites than are in this round"):
        sites.head.hear(1, Shares({2: said.sealed[2]}, said.commitment))
    assert sites.head.hear(1, said)
    with pytest.raises(ProtocolError, match="or again"):
        sites.head.hear(1, said)


def test_a_round_of_too_few_or_too_many_is_none() -> None:
    assert Sites(4).round() == "4 sites, and a round takes 5"
    assert Sites(10).round() == "10 sites, and threshold=5 is not more than half of them"
    assert Sites(2, ps.SecureSums(2, CLIP)).round() == "2 sites, and a round takes 3"
    assert not isinstance(Sites(3, ps.SecureSums(2, CLIP)).round(), str)

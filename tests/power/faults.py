"""A hundred faults that a developer could make, as data: where, the text, what stands there instead, what a user would lose.

The bugs of `torture.bugs` stand in for parts of the simulated core, to see that its oracle is not blind. These are planted in
the text of all rooms, to see which of the project's tests find them. Code that moves on takes its fault along: the old text
is to be in its file exactly once, which `tests/unit/test_power.py` checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """One mutation of a file of `src/plesio`; without new text something is left out."""

    file: str
    old: str
    new: str
    lost: str

    @property
    def room(self) -> str:
        return self.file.split("/", maxsplit=1)[0]

    def planted(self, text: str) -> str:
        """The file's text with this fault.

        Raises:
            ValueError: the old text is not there exactly once.
        """
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {times} times, not once: {self.old}")
        return text.replace(self.old, self.new)

    def plant(self, tree: Path) -> None:
        """Change the file in a copy of the project."""
        path = tree / "src" / "plesio" / self.file
        path.write_text(self.planted(path.read_text(encoding="utf-8")), encoding="utf-8")


FAULTS = (
    Fault(
        "core/leases.py",
        "self.done += len(batches)",
        "self.done += 1",
        "the progress that a run tells and by which strategies weigh falls behind when a step takes several batches",
    ),
    Fault(
        "core/leases.py",
        "insort(self._returned, piece, key=_place)",
        "self._returned.append(piece)",
        "batches that a worker gave back come out of turn, some of them never in their epoch",
    ),
    Fault(
        "core/leases.py",
        "(*map(_saved, self._returned), *leased, *unfolded)",
        "(*map(_saved, self._returned), *unfolded)",
        "a resumed run never trains on the batches that workers held at the checkpoint",
    ),
    Fault(
        "core/leases.py",
        "leases.done, leases.skipped = state.done, state.skipped",
        "leases.done, leases.skipped = state.done, 0",
        "a resumed run waits for batches that were skipped before the checkpoint",
    ),
    Fault(
        "core/leases.py",
        "self.give_back(self.consume(worker, len(self._outstanding[worker])))",
        "self.skip(self.consume(worker, len(self._outstanding[worker])))",
        "nobody trains on the batches that a dead worker held",
    ),
    Fault(
        "core/leases.py",
        "tuple(held.pop() for",
        "tuple(held.popleft() for",
        "a worker gives back the batches that it has trained on, and they are trained on twice",
    ),
    Fault(
        "core/leases.py",
        "first = state.epochs - whole",
        "first = state.epochs - whole - 1",
        "a resumed run trains twice on batches of an epoch that was over",
    ),
    Fault(
        "core/membership.py",
        "if incarnation <= self._last_incarnation.get(worker, 0):",
        "if incarnation < self._last_incarnation.get(worker, 0):",
        "the same process takes its seat twice, and its contribution may count twice",
    ),
    Fault(
        "core/membership.py",
        "if seat.waiting is None and now_s - seat.heard_s > least_s]",
        "if now_s - seat.heard_s > least_s]",
        "a worker is evicted for the time in which it waits for others",
    ),
    Fault(
        "core/membership.py",
        "self.waiting -= seat.waiting is not None",
        "",
        "a run thinks for ever that somebody waits who has left, and evicts too early",
    ),
    Fault(
        "core/membership.py",
        "members._last_incarnation.update(state.last_incarnation)",
        "",
        "a process from before the crash may still contribute to the resumed run",
    ),
    Fault(
        "core/membership.py",
        "seat.heard_s = seat.answered_s = now_s",
        "seat.answered_s = now_s",
        "a worker that waited long is evicted as soon as it goes on",
    ),
    Fault(
        "core/folds.py",
        "staleness = one.event, version - 1 - one.computed_from",
        "staleness = one.event, version - one.computed_from",
        "every staleness that is told is one too large",
    ),
    Fault(
        "core/folds.py",
        "scale = self._scale(count, self._workers)",
        "scale = self._scale(self._workers, self._workers)",
        "a round in which some are missing steps as far as a full one",
    ),
    Fault(
        "core/folds.py",
        "if not self._normalised:",
        "if self._normalised:",
        "weights by staleness do nothing where they should make a step smaller",
    ),
    Fault(
        "core/cancelling.py",
        "seat.next_number, seat.computing, seat.called_off = number + 1, version, True",
        "seat.next_number, seat.computing, seat.called_off = number + 1, seat.computing, True",
        "the step that follows a cancelled one passes for older than it is",
    ),
    Fault(
        "core/choosing.py",
        "self._times < self._rules.in_a_row",
        "self._times <= self._rules.in_a_row",
        "the run changes its strategy one look later than was asked for",
    ),
    Fault(
        "core/membership.py",
        "owed, self.owed = self.owed, ()",
        "owed = self.owed",
        "rows that were asked for ahead are served twice, to whoever does not ask",
    ),
    Fault(
        "core/sequencer.py",
        "self._orphans += 1",
        "pass",
        "a round closes without a live worker when another left in it",
    ),
    Fault(
        "core/sequencer.py",
        "seat.staleness = self.version - (seat.before if event.adopted_at else seat.computing)",
        "seat.staleness = self.version - seat.computing",
        "a contribution of a worker that computes ahead passes for a fresher one than it is",
    ),
    Fault(
        "core/sequencer.py",
        "self.leases.skip(batches)",
        "self.leases.folded(batches)",
        "batches whose gradient was a NaN count as trained on",
    ),
    Fault(
        "core/sequencer.py",
        "self.leases.give_back(batches)",
        "self.leases.skip(batches)",
        "batches of contributions that were too stale are never trained on",
    ),
    Fault(
        "core/sequencer.py",
        "sequencer.switching = Switching(strategy, state.phase, state.version)",
        "sequencer.switching = Switching(strategy, 0, state.version)",
        "a run that was switched resumes under the strategy that it began with",
    ),
    Fault(
        "core/sequencer.py",
        "self.grace_until_s, self._overdue, self._short, self._in_grace = NEVER_S, False, False, False",
        "self.grace_until_s, self._short, self._in_grace = NEVER_S, False, False",
        "after one deadline every round closes with the first contribution",
    ),
    Fault(
        "core/sequencer.py",
        "self.leases.give_back(one.batches)",
        "self.leases.folded(one.batches)",
        "batches of a round that was given up count as trained on",
    ),
    Fault(
        "memory/gather.py",
        "self._held_absent &= self.absent.get(worker, 0)",
        "self._held_absent |= self.absent.get(worker, 0)",
        "a fold of a buffer moves no parameter",
    ),
    Fault(
        "memory/gather.py",
        "scale = fold.scale * member.share",
        "scale = fold.scale",
        "under look-ahead each of several contributions steps as far as all together",
    ),
    Fault(
        "memory/gather.py",
        "[(weight / fold.held, one) for weight, one in tables.take_held()]",
        "[(weight, one) for weight, one in tables.take_held()]",
        "sparse tensors take the sum of gradients where others take the mean",
    ),
    Fault(
        "memory/master.py",
        "to.add_(exact - rounded)",
        "to.add_(rounded - exact)",
        "half precision loses what rounding left over, twice",
    ),
    Fault(
        "memory/momenta.py",
        "others = 1.0 - 1.0 / max(1, len(self.live))",
        "others = 1.0",
        "weights are looked ahead too far, by the worker's own momentum",
    ),
    Fault(
        "memory/momenta.py",
        '(momentum**2 if at.group.get("nesterov") else momentum)',
        "momentum",
        "Nesterov's momentum is looked ahead as if it were a plain one",
    ),
    Fault(
        "memory/momenta.py",
        'self.damping.take(numbers["damping"])',
        "",
        "a resumed run damps gaps as if it had just begun",
    ),
    Fault(
        "memory/momenta.py",
        "(first, second ** (1.0 / workers))",
        "(first, second)",
        "Adam's mean of squares forgets too fast, once for each worker",
    ),
    Fault(
        "memory/packed.py",
        "self._packed[index].memory.zero_()",
        "",
        "a worker that has the current version adds the last change to it again",
    ),
    Fault(
        "memory/packed.py",
        "self._made.clear()",
        "",
        "workers are shown a version that is not the newest",
    ),
    Fault(
        "memory/steps.py",
        "min(1.0, came.folded / self._workers)",
        "1.0",
        "running statistics are those of the worker that came last",
    ),
    Fault(
        "memory/surviving.py",
        "self._begun[0] = self._done",
        "",
        "a server that died in a fold goes on from half of it",
    ),
    Fault(
        "memory/gather.py",
        "self._held.take(numbers[1])",
        "pass",
        "the server's successor forgets the contributions that wait for a fold",
    ),
    Fault(
        "memory/row_tables.py",
        "weight = 1.0 / fold.held if fold.held else 1.0",
        "weight = 1.0",
        "rows of tables step by the sum of held gradients, not by their mean",
    ),
    Fault(
        "tensors/adam.py",
        "left = 1 - b2**steps",
        "left = 1 - b2 ** (steps + 1)",
        "Adam's first steps are larger than PyTorch's",
    ),
    Fault(
        "tensors/sgd.py",
        'v.mul_(group["momentum"]).add_(g, alpha=1 - group["dampening"])',
        'v.mul_(group["momentum"]).add_(g)',
        "SGD's dampening does nothing",
    ),
    Fault(
        "tensors/corrections.py",
        "g.add_((g * g).mul_(now - then), alpha=rule.lam)",
        "g.add_((g * g).mul_(then - now), alpha=rule.lam)",
        "delay compensation makes a stale gradient worse",
    ),
    Fault(
        "tensors/corrections.py",
        'list(numbers["mean_step"]), list(numbers["steps"])',
        'list(numbers["mean_step"]), [0] * len(numbers["steps"])',
        "a resumed run is gap-aware as if it had just begun",
    ),
    Fault(
        "tensors/mean.py",
        "total.add_(one, alpha=weight * self._down)",
        "total.add_(one, alpha=weight)",
        "a buffer's mean weighs its first contribution less than the others",
    ),
    Fault(
        "tensors/mean.py",
        "torch.maximum(target, part, out=target)",
        "torch.minimum(target, part, out=target)",
        "batch norm's counter is that of the slowest worker",
    ),
    Fault(
        "tensors/codecs/cast.py",
        "torch.sub(delta, packed.float(), out=held)",
        "held.zero_()",
        "what half precision cuts off is lost instead of sent later",
    ),
    Fault(
        "tensors/rebasing.py",
        "start.copy_(new)",
        "start.copy_(moved)",
        "a worker's own steps are counted twice when it adopts a version",
    ),
    Fault(
        "tensors/outer_optimizer.py",
        'state["sum"].zero_()',
        "",
        "delayed Nesterov adds the same gradients to its momentum again and again",
    ),
    Fault(
        "tensors/noise.py",
        "privacy.noise * privacy.clip / privacy.per_round",
        "privacy.noise / privacy.per_round",
        "the noise does not fit the clipping, and the privacy that was promised is not there",
    ),
    Fault(
        "tensors/rate_scale.py",
        "scale / share**0.25",
        "scale / share**0.5",
        "Adam's learning rate is scaled wrongly with the number of workers",
    ),
    Fault(
        "server/checkpointer.py",
        "attachments=self.attachments.kept(),",
        "",
        "counters and schedules begin at zero after a resume",
    ),
    Fault(
        "server/checkpointer.py",
        "made.batches + one.batches,",
        "made.batches,",
        "a worker that comes back begins its data at the wrong batch",
    ),
    Fault(
        "server/checkpointer.py",
        "return Taken(self.taken.steps - steps, self.taken.samples - samples)",
        "return self.taken",
        "samples that are trained on again after a resume count twice",
    ),
    Fault(
        "server/checkpointer.py",
        "self.before[worker] = self._made[worker]",
        "",
        "a worker that comes back counts its contributions from the start of the run",
    ),
    Fault(
        "server/checkpointer.py",
        "self.states.restore(saved.path, manifest.clients, manifest.version)",
        "pass",
        "what clients kept is lost on a resume",
    ),
    Fault(
        "server/checkpoints.py",
        "for old in own[: -self._keep]:",
        "for old in own[: 1 - self._keep]:",
        "one checkpoint fewer is kept than was asked for",
    ),
    Fault(
        "server/checkpoints.py",
        "for path in reversed(found):",
        "for path in found:",
        "a run resumes from the oldest checkpoint instead of the newest",
    ),
    Fault(
        "server/checkpoints.py",
        "if xxh3_64_hexdigest((path / name).read_bytes()) != checksum:",
        "if not (path / name).exists():",
        "a run resumes from damaged weights",
    ),
    Fault(
        "server/checkpoints.py",
        "shutil.rmtree(hidden, ignore_errors=True)",
        "pass",
        "checkpoints that could not be written fill the disk",
    ),
    Fault(
        "server/row_chain.py",
        "or later > WORN * first",
        "or later < WORN * first",
        "each checkpoint writes whole tables, not what has changed in them",
    ),
    Fault(
        "server/non_finite.py",
        "if self._fatal or not number & (number - 1):",
        "if self._fatal or number == 1:",
        "a worker whose every gradient is a NaN is told of once only",
    ),
    Fault(
        "server/non_finite.py",
        "if self._finite_at is None:",
        "if self._finite_at is not None:",
        "a model that diverged is written over the good checkpoint",
    ),
    Fault(
        "server/agreement.py",
        "excused = self.came_late or self._gather.size(workers) < workers",
        "excused = False",
        "a run ends for an order of optimizers that was allowed",
    ),
    Fault(
        "server/program.py",
        "self.checkpointer.answered(worker, cancel.number, late=True)",
        "pass",
        "a worker that comes back after a cancelled step has a wrong count of its contributions",
    ),
    Fault(
        "server/checkpoint_timing.py",
        "return self.waits or not self._stopped",
        "return not self._stopped",
        "a run that is stopped during a fold has no last checkpoint",
    ),
    Fault(
        "launch/local/rebirths.py",
        "now_s - self._at_s[0] < WITHIN_S",
        "now_s - self._at_s[0] > WITHIN_S",
        "a server that dies again and again is started for ever",
    ),
    Fault(
        "launch/local/rebirths.py",
        "self.expected -= 1",
        "",
        "a server that fails by itself is started anew without a limit",
    ),
    Fault(
        "launch/local/patience.py",
        "return self.asked and self._waited_s(self._asked_s) > allowed_s",
        "return self._waited_s(self._asked_s) > allowed_s",
        "workers are killed though nobody asked them to stop",
    ),
    Fault(
        "launch/local/patience.py",
        "0.0 if self.writing else time.monotonic() - max(asked_s, self._written_s)",
        "time.monotonic() - asked_s",
        "a large last checkpoint is cut off",
    ),
    Fault(
        "launch/local/seats.py",
        "close_quietly(tie)",
        "",
        "the launcher runs out of descriptors when ranks join again and again",
    ),
    Fault(
        "launch/local/seats.py",
        "self.finished -= new",
        "",
        "a run that is scaled up after workers finished does not let new ones in",
    ),
    Fault(
        "launch/local/seats.py",
        "if self._in_vain > IN_VAIN_MAX:",
        "if self._in_vain >= IN_VAIN_MAX:",
        "an island begins anew one time fewer before the run is given up",
    ),
    Fault(
        "launch/local/seats.py",
        "return worker not in self.finished and (holder is None or holder.gone or worker in self._away)",
        "return holder is None or holder.gone or worker in self._away",
        "a seat whose work is done is given away again",
    ),
    Fault(
        "launch/local/door.py",
        "oldest_s = time.monotonic() - (CROWDED_S if self._crowded else PROOF_S)",
        "oldest_s = 0.0",
        "strangers who say nothing fill the door, and workers cannot come in",
    ),
    Fault(
        "launch/local/worker_routes.py",
        "made.number == self.steps + 1 <= self.answers",
        "made.number == self.steps + 1",
        "a wrong program at the other side can stop the server by a contribution too many",
    ),
    Fault(
        "launch/local/worker_routes.py",
        "t.said[type(one)] < t.cancelled",
        "t.cancelled > 0",
        "a wrong program can pull the whole model as often as it likes",
    ),
    Fault(
        "launch/local/worker_rows.py",
        "at + count <= MOST",
        "at <= MOST",
        "a wrong program makes a proxy read beyond its slot",
    ),
    Fault(
        "launch/remote/bell.py",
        "self._answers.clear()",
        "",
        "a worker that lost its seat takes the answer to its old life for the new one",
    ),
    Fault(
        "launch/local/proxy.py",
        "self._until_s, wire.eager = 0.0, self.eager",
        "wire.eager = self.eager",
        "a worker that came back in time is dropped a little later",
    ),
    Fault(
        "launch/local/worker_lines.py",
        "key=lambda line: not line.gone",
        "key=lambda line: line.gone",
        "the data of workers that ended at once comes late to the others",
    ),
    Fault(
        "tables/life.py",
        "clock - np.int64(version) > life",
        "clock - np.int64(version) >= life",
        "rows expire one version too early",
    ),
    Fault(
        "tables/life.py",
        "admitted[i] = came >= times",
        "admitted[i] = came > times",
        "a key gets a row one time later than was asked for",
    ),
    Fault(
        "tables/life.py",
        "at.numbers[CURSOR] = row",
        "at.numbers[CURSOR] = 0",
        "dead rows beyond the first few thousand are never swept away",
    ),
    Fault(
        "tables/store.py",
        "others = self.clock - 1",
        "others = self.clock",
        "a row expires in the very step that uses it",
    ),
    Fault(
        "tables/store.py",
        "self._moved = self._moved or self.held > 0",
        "",
        "a table that was restored in training steps rows of other keys, or raises",
    ),
    Fault(
        "tables/distinct.py",
        "self._touched[before:after] = 0",
        "",
        "a key's gradient has what another key had in the step before",
    ),
    Fault(
        "tables/rules.py",
        "= 1 - one, 1 - two",
        "= 1 - two, 1 - one",
        "Adam on rows takes its betas the wrong way round",
    ),
    Fault(
        "tables/rules.py",
        "(total(sums) + rest) / np.float32(dim)",
        "(total(sums) + rest)",
        "row-wise Adagrad steps too little in wide tables",
    ),
    Fault(
        "tables/file.py",
        "rows[part] + clock - clocks[name]",
        "rows[part] + clock",
        "rows that were brought from another run expire too late",
    ),
    Fault(
        "tables/undo.py",
        "for one in range(at.numbers[KEPT] - 1, -1, -1):",
        "for one in range(at.numbers[KEPT]):",
        "after a crash in a fold a row has half of that fold",
    ),
    Fault(
        "worker/schedule.py",
        "            self._made = 0",
        "",
        "a schedule that a resumed run rebuilds begins again at its first rate",
    ),
    Fault(
        "worker/schedule.py",
        "loader.position * self._calls * self._part",
        "loader.position * self._calls",
        "a schedule that was built after prepare ends too early",
    ),
    Fault(
        "worker/state.py",
        "self.batches_before = told.batches",
        "",
        "a resumed worker tells a wrong place in its data",
    ),
    Fault(
        "worker/state.py",
        "seed_step(*self._seeded_as, self.before + self.number)",
        "seed_step(*self._seeded_as, self.number)",
        "dropout repeats its draws after a resume",
    ),
    Fault(
        "worker/metrics.py",
        "sum(values) / len(values)",
        "values[-1]",
        "a logged loss is that of one step, not the mean",
    ),
    Fault(
        "worker/counter.py",
        "self._counting.all.get(self._name, 0) + self._counting.added[self._name]",
        "self._counting.all.get(self._name, 0)",
        "a worker does not see what it has counted itself",
    ),
    Fault(
        "worker/budget.py",
        "releases < self.rounds",
        "releases <= self.rounds",
        "a private run spends one round more than its epsilon allows",
    ),
    Fault(
        "worker/own_part.py",
        "one.detach().cpu().clone()",
        "one.detach().cpu()",
        "a client's kept layers change while another client trains",
    ),
    Fault(
        "worker/data/order.py",
        "seed = self._seed + 1_000_003 * (epoch + 1)",
        "seed = self._seed + 1_000_003",
        "every epoch has the same order",
    ),
    Fault(
        "worker/data/order.py",
        "start, end = count * part // parts, count * (part + 1) // parts",
        "start, end = count // parts * part, count // parts * (part + 1)",
        "the last samples of a batch are in no rank's slice",
    ),
)

"""Any sequence of runs, kills and damage leaves a store that can be trusted."""

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import eande
from eande.foundations import files
from eande.foundations.seeds import derive_seed
from eande.simulation.run.blocks import block_sizes
from eande.simulation.store import zarr_store
from eande.simulation.store.metadata import ArrayDocument
from eande.simulation.store.shards import Layout
from helpers.stores import BOX, flip, noisy

pytestmark = pytest.mark.thorough


class Killed(BaseException):
    """Stands for a process that ends there and then.

    Nothing after it runs, not even the tidying up of the store.
    """


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done to a store, in whatever order.

    What it gives is right, and a call to simulate makes it whole.
    """

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "s.zarr"
        self.extents = []
        self.broken = set()

    def teardown(self):
        self.folder.cleanup()

    def truth(self):
        """Return φ and y of all blocks planned, by simulating each extent in memory with the stream
        of its block.
        """
        phi = []
        y = []
        for block, size in enumerate(block_sizes(self.extents, 4)):
            phi.append(BOX.sample(size, seed=derive_seed(0, "phi", block)))
            y.append(
                torch.from_numpy(
                    noisy(
                        phi[-1].numpy(), np.random.default_rng(derive_seed(0, "simulator", block))
                    ).astype(np.float32)
                )
            )
        return torch.cat(phi), torch.cat(y)

    def go(self, n, **options):
        stored = eande.simulate(
            noisy, BOX, n, store=self.path, block_size=4, progress=False, **options
        )
        if n not in self.extents:
            self.extents.append(n)
        return stored

    @rule(more=st.integers(1, 11))
    def extend_or_resume(self, more):
        if self.broken:
            return
        self.go((self.extents[-1] if self.extents else 0) + more)
        self.whole()

    @rule(
        more=st.integers(1, 11),
        steps=st.integers(0, 12),
        where=st.sampled_from(["write", "create", "sync", "replace"]),
    )
    def die(self, more, steps, where):
        """End in the middle of a call.

        It ends at the n-th write of an array, creation, sync or renaming.
        """
        if self.broken:
            return
        n = (self.extents[-1] if self.extents else 0) + more
        left = [steps]

        def then_die(whole):
            def wrapped(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return whole(*args, **kwargs)

            return wrapped

        targets = {
            "write": [(Layout, "write_shard")],
            "create": [(ArrayDocument, "write")],
            "sync": [(zarr_store, "sync"), (files, "sync")],
            "replace": [(Path, "replace")],
        }
        with pytest.MonkeyPatch.context() as patch:
            for target in targets[where]:
                patch.setattr(*target, then_die(getattr(*target)))
            with contextlib.suppress(Killed):
                self.go(n)
        if (self.path / "zarr.json").exists():
            self.extents = eande.Store(self.path).about.extents

    @precondition(lambda self: self.extents)
    @rule(data=st.data())
    def damage(self, data):
        files = sorted(
            file
            for file in self.path.rglob("*")
            if file.is_file()
            and ("c" in file.parts[len(self.path.parts) :] or "commits" in file.parts)
        )
        files = [file for file in files if file.stat().st_size]
        if not files:
            return
        file = data.draw(st.sampled_from(files))
        block = (
            int(file.stem)
            if file.parent.name == "commits"
            else int(file.relative_to(self.path).parts[2])
        )
        if not (self.path / "commits" / f"{block:08d}.json").exists():
            return  # not there anyway
        kind = data.draw(st.sampled_from(["flip", "cut"]))
        if kind == "flip":
            flip(file, data.draw(st.integers(0, file.stat().st_size - 1)))
        else:
            os.truncate(file, data.draw(st.integers(0, file.stat().st_size - 1)))
        self.broken.add(block)

    @precondition(lambda self: self.extents)
    @rule()
    def repair(self):
        assert set(eande.Store(self.path).check()) == self.broken
        self.go(self.extents[-1], redo="damaged")
        self.broken = set()
        self.whole()

    def whole(self):
        phi, y = self.truth()
        stored = eande.Simulations.open(self.path)
        assert torch.equal(stored.phi, phi)
        assert torch.equal(stored.y[:], y)

    @invariant()
    def nothing_wrong_is_ever_given(self):
        if not getattr(self, "extents", []):
            return
        phi, y = self.truth()
        try:
            stored = eande.Simulations.open(self.path)
            data = stored.y[:]
        except eande.InputError as error:
            if not self.broken and "got none" not in str(error):
                raise
            return
        assert len(stored.phi.unique(dim=0)) == len(stored)
        place = [int((phi == row).all(1).nonzero()[0, 0]) for row in stored.phi]
        assert torch.equal(data, y[place])


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)

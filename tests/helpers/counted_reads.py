"""A source that counts what is read from it."""

import numpy as np

from eande.simulation.read.sources import Source


class Counting(Source):
    """Data in memory that count what is read of them."""

    def __init__(self, y, rows=None):
        super().__init__(np.arange(len(y)) if rows is None else rows, tuple(y.shape[1:]))
        self.data = y
        self.numbers = [0]

    def read(self, row, start, stop, out):
        out[...] = self.data[row, start:stop]
        self.numbers[0] += out.size

    def subset(self, index):
        chosen = Counting(self.data, self.rows[index])
        chosen.numbers = self.numbers
        return chosen

    def fingerprint(self):
        return "counting"

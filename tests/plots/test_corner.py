"""The corner figure shows where samples lie, of whom they are, and names as they are."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from torch.distributions import Independent, Normal

import eande
from eande import plots
from eande.plots.densities import density, height_of
from eande.plots.style import COLORS
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import exact_model

RNG = np.random.default_rng(0)
SAMPLES = RNG.normal([1.0, -3.0], [0.5, 2.0], size=(4_000, 2))


def curve(axis, number=0):
    return axis.lines[number].get_data()


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def width_of(place, height):
    """The standard deviation of a drawn density."""
    mass = height / height.sum()
    mean = (place * mass).sum()
    return ((place - mean) ** 2 * mass).sum() ** 0.5


def contours(axis):
    """The vertices of each contour, the wider one first."""
    return [path.vertices for path in axis.collections[0].get_paths()]


def test_densities_on_the_diagonal_are_normalised_and_lie_where_the_samples_do():
    axes = plots.corner(SAMPLES, names=["a", "b"]).axes
    for axis, centre, spread in ((axes[0], 1.0, 0.5), (axes[2], -3.0, 2.0)):
        place, height = curve(axis)
        assert np.trapezoid(height, place) == pytest.approx(1, abs=0.01)
        assert place[height.argmax()] == pytest.approx(centre, abs=0.5 * spread)
        assert width_of(place, height) == pytest.approx(spread, rel=0.08)


def test_contours_hold_ninety_and_fifty_per_cent_of_the_samples():
    wide, narrow = contours(plots.corner(SAMPLES).axes[1])
    # Ellipses of a Gaussian: radii in standard deviations.
    for vertices, share in ((wide, 0.9), (narrow, 0.5)):
        radius = np.hypot(*((vertices - [1.0, -3.0]) / [0.5, 2.0]).T)
        assert radius.mean() == pytest.approx((-2 * np.log(1 - share)) ** 0.5, rel=0.07)


def test_where_samples_thin_out_the_density_falls_to_nothing_within_the_axes():
    angle = RNG.uniform(0, 2 * np.pi, 5_000)
    radius = 10 + 0.3 * RNG.standard_normal(5_000)
    ring = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    above, pair, _ = plots.corner(ring).axes
    place, height = curve(above)
    low, high = above.get_xlim()
    shown = (place > low) & (place < high)
    assert (height[shown][[0, -1]] < 0.02 * height.max()).all()
    assert np.abs(np.diff(height)).max() < 0.1 * height.max(), "a cliff"
    # The rim is round, not cut off at the last samples.
    rim = max(contours(pair), key=len)
    outer = np.hypot(*rim.T)[np.hypot(*rim.T) > 10]
    assert outer.std() < 0.03 * outer.mean()


def test_nothing_is_drawn_where_the_prior_has_no_draws():
    """Samples that thin out towards an edge, as those of a Beta law."""
    values = RNG.beta(3, 3, size=(4_000, 1))
    place, height = curve(plots.corner(values, prior=eande.BoxPrior([0], [1])).axes[0], 1)
    assert (height[(place < -0.01) | (place > 1.01)] == 0).all()
    place, height = curve(plots.corner(values).axes[0])
    assert (height[place < 0] > 0).any()


@pytest.mark.parametrize("count", [200, 1_000, 5_000])
def test_at_the_edge_of_a_support_the_density_does_not_sag(count):
    """Its sibling: there the cliff is the truth."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(20):
        place, height = curve(plots.corner(rng.uniform(size=(count, 1))).axes[0])
        held += place[0] > -0.02 and place[-1] < 1.02 and height[[2, -3]].min() > 0.6
    assert held >= 17


def test_axes_are_shared_and_names_written_once_at_the_edge():
    figure = plots.corner(SAMPLES, names=["rate", "scale"], title="Mine")
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "rate", "scale"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["", "scale", ""]
    above, pair, beside = figure.axes
    assert pair.get_xlim() == above.get_xlim()
    assert pair.get_ylim() == beside.get_xlim()
    assert figure.get_suptitle() == "Mine"
    assert legend(figure) == ["posterior"]


def test_several_posteriors_differ_in_colour_and_in_line():
    figure = plots.corner({"first": SAMPLES, "second": SAMPLES + 1, "third": SAMPLES - 1})
    lines = figure.axes[0].lines
    assert [to_hex(line.get_color()).upper() for line in lines] == list(COLORS[:3])
    assert len({str(line.get_linestyle()) for line in lines}) == 3
    assert legend(figure) == ["first", "second", "third"]
    places = [place[height.argmax()] for place, height in (line.get_data() for line in lines)]
    assert places[2] < places[0] < places[1]


def test_truth_prior_and_reference_are_drawn_and_named():
    prior = Independent(Normal(torch.tensor([1.0, -3.0]), torch.tensor([1.0, 4.0])), 1)
    figure = plots.corner(
        SAMPLES, truth=[1.2, -2.0], prior=prior, reference={"exact": SAMPLES + 0.1}
    )
    assert legend(figure) == ["exact", "posterior", "prior", "truth"]
    above, pair, _ = figure.axes
    prior_line, ours, truth = above.lines
    assert width_of(*prior_line.get_data()) == pytest.approx(1.0, rel=0.05)
    assert prior_line.get_linestyle() == ":"
    assert width_of(*ours.get_data()) == pytest.approx(0.5, rel=0.08)
    assert truth.get_xdata() == [1.2, 1.2]
    square = pair.lines[-1]
    assert (square.get_xdata()[0], square.get_ydata()[0]) == (1.2, -2.0)
    # The reference is filled: on the diagonal an area, below it regions.
    assert len(above.collections) == 1
    assert len(pair.collections) == 2
    assert not plots.corner(SAMPLES).axes[0].collections


def test_a_posterior_gives_its_samples_names_and_prior():
    task = VonMisesFisher(8, seed=0)
    y = task(task.prior.sample(1, seed=1).numpy(), np.random.default_rng(0))[0]
    posterior = exact_model(task).posterior(y)
    figure = plots.corner(
        posterior, prior=True, derived={"product": lambda p: p["phi1"] * p["phi2"]}
    )
    assert [axis.get_xlabel() for axis in figure.axes[3:]] == ["phi1", "phi2", "product"]
    assert legend(figure) == ["posterior", "prior"]
    drawn = posterior.sample(5_000, seed=0)[0][:, 0].double()
    place, height = curve(figure.axes[0], 1)
    mass = height / height.sum()
    middle = (place * mass).sum()
    assert middle == pytest.approx(drawn.mean().item(), abs=0.05 * drawn.std().item())
    again = plots.corner(posterior, prior=True)
    assert np.array_equal(curve(again.axes[0], 1)[1], height), "the same samples every time"


def test_a_derived_quantity_has_its_truth_prior_and_samples():
    prior = eande.BoxPrior([0, 0], [1, 2], names=["a", "b"])
    samples = prior.sample(2_000, seed=0)
    figure = plots.corner(
        samples,
        names=["a", "b"],
        truth=[0.5, 0.5],
        prior=prior,
        derived={"a+b": lambda p: p["a"] + p["b"]},
    )
    last = figure.axes[-1]
    assert last.get_xlabel() == "a+b"
    before, ours, truth = last.lines
    assert truth.get_xdata()[0] == 1.0
    assert width_of(*ours.get_data()) == pytest.approx((1 / 12 + 4 / 12) ** 0.5, rel=0.05)
    assert width_of(*before.get_data()) == pytest.approx((1 / 12 + 4 / 12) ** 0.5, rel=0.05)


LONG = [f"a_rather_long_name_of_parameter_{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["$\\frac{", "a_b", "<script>"], "50 % of $x_"),
        (["x", "a name of more than forty letters, written out", "z"], ""),
        (LONG, "Many"),
        ([f"p{i}" for i in range(10)], ""),
    ],
)
def test_names_are_written_as_they_are_and_never_cut_off(names, title):
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(300, len(names))) * np.logspace(-5, 5, len(names))
    figure = plots.corner({"_mine $1$": samples}, names=names, title=title)
    FigureCanvasAgg(figure).draw()
    labels = [axis.xaxis.label for axis in figure.axes if axis.get_xlabel()]
    labels += [axis.yaxis.label for axis in figure.axes if axis.get_ylabel()]
    assert [label.get_text() for label in labels] == [*names, *names[1:]]
    texts = [*labels, *figure.legends[0].get_texts()]
    for text in texts:
        assert not text.get_parse_math()
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    assert legend(figure) == ["_mine $1$"]


def test_labels_of_ticks_do_not_overlap_and_have_no_offset():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(300, 6)) * np.logspace(-5, 5, 6) + [0, 0, 0, 0, 1e6, 1e8]
    figure = plots.corner(samples)
    FigureCanvasAgg(figure).draw()
    for axis in figure.axes[-6:]:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        assert len(boxes) >= 2
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))
        assert axis.xaxis.get_offset_text().get_text() == ""
        texts = [label.get_text() for label in axis.get_xticklabels()]
        assert len(set(texts)) == len(texts), texts


def test_few_samples_are_points_and_equal_ones_do_no_harm():
    few = plots.corner(SAMPLES[:30]).axes[1]
    assert np.array_equal(few.lines[0].get_xydata(), SAMPLES[:30].astype(np.float32))
    FigureCanvasAgg(plots.corner(np.ones((500, 2)))).draw()


def test_a_density_is_as_sharp_as_what_it_is_of():
    """Two narrow peaks far apart, and a ring: a rule that looks at the whole would blur them."""
    rng = np.random.default_rng(0)
    peaks = np.where(rng.random(5_000) < 0.5, -15, 15) + 0.5 * rng.normal(size=5_000)
    found = density(peaks[:, None])
    right = found.centres[0] > 0
    assert width_of(found.centres[0][right], found.values[right]) < 0.6
    angle = rng.uniform(0, 2 * np.pi, 5_000)
    radius = 10 + 0.4 * rng.normal(size=5_000)
    ring = density(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))
    level = height_of(ring.values, 0.9)
    distance = np.hypot(*np.meshgrid(*ring.centres, indexing="ij"))
    inside = distance[ring.values >= level]
    assert inside.min() > 8
    assert ring.values[distance < 7].max() < level / 10


def test_a_density_does_not_sag_at_the_edge_of_a_box():
    flat = density(np.random.default_rng(0).uniform(size=(20_000, 1)))
    assert flat.values.min() > 0.85
    assert flat.values.max() < 1.15


def test_mistakes_are_refused_in_a_line():
    for error, call in {
        r"names: expected 2 different names": lambda: plots.corner(SAMPLES, names=["a"]),
        r"truth: expected shape \(2,\), got \(3,\)": lambda: plots.corner(SAMPLES, truth=[1, 2, 3]),
        r"prior: expected a prior, for samples alone": lambda: plots.corner(SAMPLES, prior=True),
        r"prior: expected one of 2 parameters": lambda: plots.corner(
            SAMPLES, prior=eande.BoxPrior([0], [1])
        ),
        r"reference: expected shape \(n, 2\)": lambda: plots.corner(
            SAMPLES, reference=np.zeros((5, 3))
        ),
        r"samples: expected shape \(n, 2\)": lambda: plots.corner(
            {"a": SAMPLES, "b": np.zeros((5, 3))}
        ),
        r"samples: expected at most 20 parameters": lambda: plots.corner(np.zeros((5, 21))),
        r"reference: expected one to compare with, got 2": lambda: plots.corner(
            SAMPLES, reference={"a": SAMPLES, "b": SAMPLES}
        ),
    }.items():
        with pytest.raises(eande.InputError, match=error):
            call()

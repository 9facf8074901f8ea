"""What the examples in docstrings share: a small problem, and a model fitted to it once."""

import numpy as np
import pytest
import torch

import eande

# It has no examples itself, and tests have another file of this name.
collect_ignore = ["conftest.py"]


@pytest.fixture(autouse=True, scope="session")
def _names_of_examples(doctest_namespace, tmp_path_factory):
    """Give every example the names that the reference explains."""
    torch.set_num_threads(1)

    # The shared problem of all examples.
    time = np.linspace(0, 1, 10)

    def simulator(phi, rng):
        slope, offset = phi[:, :1], phi[:, 1:]
        return slope * time + offset + 0.5 * rng.standard_normal((len(phi), 10))

    prior = eande.BoxPrior([-1, -1], [1, 1], names=["slope", "offset"])
    simulations = eande.simulate(simulator, prior, n=500, seed=0, progress=False)
    held_out = eande.simulate(simulator, prior, n=200, seed=1, progress=False)
    settings = eande.FitSettings(epochs=10, start="linear", width=32, device="cpu")
    model = eande.fit(simulations, prior, settings=settings, progress=False)
    y_observed = simulator(np.array([[0.5, -0.2]]), np.random.default_rng(2))[0]
    posterior = model.posterior(y_observed)
    # End of the shared problem.

    doctest_namespace.update(
        eande=eande,
        folder=tmp_path_factory.mktemp("examples"),  # an empty one
        np=np,
        torch=torch,
        simulator=simulator,
        prior=prior,
        simulations=simulations,
        held_out=held_out,
        model=model,
        y_observed=y_observed,
        posterior=posterior,
    )

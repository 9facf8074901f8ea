"""A wheel with the reference samples of the public benchmark, as its package has them."""

import bz2
import zipfile

import numpy as np

from eande.simulators.sbibm import TASKS

# What is not in a folder of its own, under the name observation.csv.
PLACES = {
    "slcp_distractors": ("slcp", "observation_distractors.csv"),
    "bernoulli_glm_raw": ("bernoulli_glm", "observation_raw.csv"),
}


def write_wheel(path, task="two_moons", count=100):
    phi = TASKS[task].prior.sample(1, seed=0)
    y = TASKS[task].simulator(phi.numpy(), np.random.default_rng(0))
    samples = TASKS[task].prior.sample(count, seed=1)

    def text(rows):
        header = ",".join(f"column_{i}" for i in range(rows.shape[1]))
        return "\n".join([header, *(",".join(map(str, row)) for row in rows.tolist())]).encode()

    place, name = PLACES.get(task, (task, "observation.csv"))
    with zipfile.ZipFile(path, "w") as wheel:
        for number in (1, 2):
            folder = f"sbibm/tasks/{place}/files/num_observation_{number}"
            wheel.writestr(f"{folder}/{name}", text(y))
            wheel.writestr(f"{folder}/true_parameters.csv", text(phi))
            wheel.writestr(
                f"{folder}/reference_posterior_samples.csv.bz2", bz2.compress(text(samples))
            )
    return path

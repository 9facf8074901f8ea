"""Fitting several members."""

import copy
import shutil

import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import InputError, UserCodeError
from eande.similarities.calibrated import Calibrated
from helpers.exact_line import gaussian
from helpers.several_members import fit, values


def test_members_differ_and_the_first_is_the_single_fit(joint):
    first, second, third = (values(member) for member in joint.members)
    assert not torch.allclose(first, second, atol=0.01)
    assert not torch.allclose(second, third, atol=0.01)
    assert torch.equal(values(fit(members=1)), first)
    assert [(record["member"], record["epoch"]) for record in joint.history] == [
        (i, r["epoch"]) for i in range(3) for r in joint.members[i].history
    ]


def test_a_copy_is_whole_and_of_its_own(joint):
    before = values(joint)
    copied = copy.deepcopy(joint)
    assert torch.equal(values(copied), before)
    assert (
        copied.members[0]
        is copied.encoder.members[0]
        is copied.emulator._members[0]
        is not joint.members[0]
    )
    # The kept bank must notice what happens to a member: another similarity, another number in it.
    member = copied.members[0]
    member.similarity = Calibrated(member.similarity, 1.0)
    assert torch.allclose(values(copied), before, atol=1e-5)
    member.similarity.exponent.fill_(0.3)
    posterior = copied.posterior([0.1, -0.2], draws=1_000)
    assert torch.allclose(posterior.bank_scores(), posterior.score(posterior.bank.phi), atol=1e-4)
    assert not torch.allclose(values(copied), before, atol=0.01)
    assert torch.equal(values(joint), before)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_fit_of_members_that_is_stopped_ends_in_the_same_weights(tmp_path):
    """Stopped in the short starts, in the middle of a member and at the start of the last.

    What was in memory is lost each time.
    """

    class Stopped(Exception):
        pass

    def stop_at(member, count):
        left = [count]

        def callback(record):
            left[0] -= record["member"] == member
            if left[0] < 0:
                raise Stopped

        return callback

    options = {
        "settings": {
            "epochs": 6,
            "restarts": 2,
            "restart_epochs": 1,
            "ema": 0.9,
            "checkpoint_seconds": 0,
        }
    }
    whole = fit(**options)
    for member, count in ((0, 1), (1, 4), (2, 0)):
        with pytest.raises(UserCodeError, match="callback: raised Stopped"):
            fit(**options, checkpoint=tmp_path, callback=stop_at(member, count))
    resumed = fit(**options, checkpoint=tmp_path)
    assert whole.state_dict().keys() == resumed.state_dict().keys()
    assert all(
        torch.equal(tensor, resumed.state_dict()[name])
        for name, tensor in whole.state_dict().items()
    )
    assert whole.history == resumed.history
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == [
        f"member-{i}/main.safetensors" for i in range(3)
    ]
    # One more member goes on from the three.
    seen = []
    fit(4, **options, checkpoint=tmp_path, callback=lambda record: seen.append(record["member"]))
    assert set(seen) == {3}
    with pytest.raises(InputError, match=r"with settings\.epochs 7, got one with 6"):
        fit(settings=options["settings"] | {"epochs": 7}, checkpoint=tmp_path)
    # One member's checkpoint is none of another's: the ensemble would have it twice.
    shutil.copy(tmp_path / "member-1" / "main.safetensors", tmp_path / "member-2")
    with pytest.raises(InputError, match="of this very fit with member 2, got one with 1"):
        fit(**options, checkpoint=tmp_path)


class OnlyParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(2, 4))

    def forward(self, x):
        return x @ self.matrix


CASES = {
    "no members": (lambda: fit(0), "members: expected a whole number of at least 1, got 0"),
    "half a member": (lambda: fit(1.5), "members: expected a whole number of at least 1, got 1.5"),
    "members alike": (
        lambda: fit(
            2,
            encoder=OnlyParameters(),
            callback=lambda record: pytest.fail("trained before it was refused"),
        ),
        "members: expected 1 for a OnlyParameters without reset_parameters, got more",
    ),
    "warm members": (
        lambda: fit(2, warm_start=gaussian()),
        r"members: expected 1 with warm_start=, got 2",
    ),
    "a warm ensemble": (
        lambda: fit(1, warm_start=eande.ensemble([gaussian(), gaussian()])),
        "warm_start: expected a single model, got an ensemble of 2; go on from its members "
        "one by one",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)

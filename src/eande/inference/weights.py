"""Weights in files, compared with what is expected there: names, shapes and kinds of numbers."""

from collections.abc import Mapping

from torch import Tensor, nn

from eande.foundations.checks import InputError, show_shape


def check_weights(where: object, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names or shapes than a model's own, and name the first."""
    for name in sorted(own.keys() | weights.keys()):
        expected = show_shape(own[name].shape) if name in own else "nothing of that name"
        found = show_shape(weights[name].shape) if name in weights else "nothing of that name"
        if expected != found:
            raise InputError(
                f"{where}: {name}: expected {expected}, got {found} in the file; is it the same "
                "network?"
            )


def check_kinds(where: object, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another kind of number than a model's own."""
    for name, tensor in found.items():
        real = own[name].is_floating_point()
        if real != tensor.is_floating_point() or tensor.is_complex():
            raise InputError(
                f"{where}: {name}: expected {own[name].dtype}, got {tensor.dtype} in the file"
            )


def check_numbers(where: object, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another kind of number than a model's own, and any NaN among them."""
    check_kinds(where, own, found)
    for name, tensor in found.items():
        # Infinity may be meant: in a mask, or where no value is too far out.
        # One reduction settles the usual case without a mask the size of the tensor.
        if tensor.is_floating_point() and tensor.sum().isnan() and tensor.isnan().any():
            raise InputError(f"{where}: {name}: expected numbers, got NaN in the file")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: object) -> None:
    """Copy weights into a model of the same shape, or name the first leaf that does not fit."""
    own = model.state_dict()
    check_weights(where, own, weights)
    check_numbers(where, own, weights)
    model.load_state_dict(weights)

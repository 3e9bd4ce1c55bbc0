"""From 1000 logits to 16 superclasses, and how alike two observers err.

Scores are the AVERAGE probability of a superclass's members (LAION-C, `laionc/evaluation.py`), not the sum:
one certain class of dog (109 members) must exceed one class of fruit (6) by ln(109 / 6) = 2.90 in logits.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_file
from hexad.vision_robustness.laion_c.superclasses import SUPERCLASSES

IMAGENET_CLASSES = 1000


class SuperclassMapper:
    """Averages the probabilities of a classifier's classes over superclasses.

    Args:
        mapping: members of each superclass, as class indices; or the path of a JSON file with the same,
            where a member may also be a name that `class_index` numbers. Default: the 16 of LAION-C.
        class_index: number of each class name, as a dictionary or as the path of a JSON file
            `{"0": ["n01440764", "tench"], ...}` or `{"airplane": 0, ...}`. WordNet identifiers of ImageNet,
            as in the official mapping, need none.
        classes: how many classes the classifier has; default 1000 for WordNet identifiers and the 16 of
            LAION-C, with `class_index` as many as it lists, and else as many as there are logits.

    Raises:
        InputError: a member is unknown, out of range or in two superclasses, or a superclass is empty.
    """

    def __init__(
        self,
        mapping: Mapping[str, Sequence[int | str]] | str | Path = SUPERCLASSES,
        class_index: Mapping[str, int] | str | Path | None = None,
        classes: int | None = None,
    ) -> None:
        if isinstance(mapping, (str, Path)):
            mapping = _read_json(mapping, "superclass mapping")
        if class_index is None and any(map(_lists_wordnet, mapping.values())):
            class_index = _wordnet_numbers()
        numbers = _class_numbers(class_index)
        if classes is None and numbers:
            classes = max(numbers.values()) + 1
        elif classes is None and mapping is SUPERCLASSES:
            classes = IMAGENET_CLASSES
        self.classes = classes
        self.names: tuple[str, ...] = tuple(mapping)
        self.members = {name: _members(name, mapping[name], numbers) for name in self.names}
        if not self.names:
            raise InputError("the superclass mapping is empty")
        if classes is not None:
            self._check_range(classes)
        seen: dict[int, str] = {}
        for name, members in self.members.items():
            for member in members:
                if member in seen:
                    where = f"{seen[member]!r} and {name!r}" if seen[member] != name else f"{name!r} twice"
                    raise InputError(f"class {member} is in {where}; a class belongs to one superclass")
                seen[member] = name
        # Averaging is a product with this matrix of 1 / members; classes after the last member add nothing.
        self._average = np.zeros((max(seen) + 1, len(self.names)))
        for column, members in enumerate(self.members.values()):
            self._average[list(members), column] = 1 / len(members)

    def scores(
        self, probabilities: Float[np.ndarray, "batch classes"]
    ) -> Float[np.ndarray, "batch superclasses"]:
        """Mean probability of each superclass's members; they do not add up to 1.

        Raises:
            InputError: another number of classes, a value that is NaN or outside [0, 1], or a row that does
                not add up to 1.
        """
        probabilities = self._checked(probabilities, "probabilities")
        if probabilities.size and (probabilities.min() < 0 or probabilities.max() > 1 + 1e-4):
            raise InputError("probabilities lie outside [0, 1]; if they are logits, give them as logits")
        # A thousand probabilities of 16 bits may be a percent off.
        wrong = np.flatnonzero(np.abs(probabilities.sum(axis=1) - 1) > 0.02)
        if wrong.size:
            raise InputError(
                f"probabilities of row {wrong[0]} add up to {probabilities[wrong[0]].sum():.4g}, not 1"
            )
        return self._averaged(probabilities)

    def scores_of_logits(
        self, logits: Float[np.ndarray, "batch classes"]
    ) -> Float[np.ndarray, "batch superclasses"]:
        """Softmax over all classes, then `scores`."""
        logits = self._checked(logits, "logits")
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return self._averaged(shifted / shifted.sum(axis=1, keepdims=True))

    def predict(self, logits: Float[np.ndarray, "batch classes"]) -> Int[np.ndarray, " batch"]:
        """Number, in `names`, of the superclass with the highest score."""
        return self.scores_of_logits(logits).argmax(axis=1)

    def number(self, name: str) -> int:
        """The number of a superclass's name."""
        try:
            return self.names.index(name)
        except ValueError:
            raise InputError(f"unknown superclass {name!r}; known: {', '.join(self.names)}") from None

    def _averaged(
        self, probabilities: Float[np.ndarray, "batch classes"]
    ) -> Float[np.ndarray, "batch superclasses"]:
        return probabilities[:, : len(self._average)] @ self._average

    def _check_range(self, classes: int) -> None:
        for name, members in self.members.items():
            if max(members) >= classes:
                raise InputError(
                    f"superclass {name!r} lists class {max(members)} of a classifier of {classes} classes"
                )

    def _checked(self, values: Any, what: str) -> Float[np.ndarray, "batch classes"]:
        if hasattr(values, "detach"):
            # A tensor of torch that has a gradient, another device, or bfloat16 is no array by itself.
            values = values.detach().cpu().double()
        try:
            values = np.asarray(values)
        except ValueError:
            raise InputError(f"{what} must be an array, with as many values in each row") from None
        if values.dtype.kind not in "fiu":
            raise InputError(f"{what} must be real numbers, not {values.dtype}")
        values = values.astype(np.float64)
        wanted = self.classes or "classes"
        if values.ndim != 2 or (self.classes is not None and values.shape[1] != self.classes):
            raise InputError(f"{what} must have shape (batch, {wanted}), not {values.shape}")
        self._check_range(values.shape[1])
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values).all(axis=1))[0, 0])
            raise InputError(
                f"{what} of row {row} hold NaN or infinity; look at the model's input and weights"
            )
        return values


def error_consistency(first: Bool[np.ndarray, " trials"], second: Bool[np.ndarray, " trials"]) -> float:
    """Cohen's kappa of two observers' right and wrong answers to the same trials.

    kappa = (observed - expected) / (1 - expected), where observed is the share of trials that both get right
    or both get wrong, and expected = p1 p2 + (1 - p1)(1 - p2) that share for independent observers of the
    same accuracies (Geirhos et al., NeurIPS 2020). 0 is chance and 1 the same errors. NaN where both are
    always right or both always wrong, since then chance explains everything.

    Raises:
        InputError: the lengths differ, or there is no trial.
    """
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise InputError(
            f"two equally long, non-empty lists of answers are needed, not {first.shape}, {second.shape}"
        )
    if first.dtype != bool or second.dtype != bool:
        raise InputError("answers must be True (right) or False (wrong)")
    observed = float((first == second).mean())
    p1, p2 = float(first.mean()), float(second.mean())
    expected = p1 * p2 + (1 - p1) * (1 - p2)
    return float("nan") if expected == 1 else (observed - expected) / (1 - expected)


def _members(name: str, listed: Sequence[int | str], numbers: Mapping[str, int]) -> tuple[int, ...]:
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not listed:
        raise InputError(f"superclass {name!r} must list its classes, not {listed!r}")
    found = []
    for member in listed:
        if isinstance(member, str):
            if member not in numbers:
                known = "" if numbers else "; a class index (--class-index FILE) numbers the names"
                raise InputError(f"superclass {name!r} lists the unknown class {member!r}{known}")
            member = numbers[member]
        if isinstance(member, bool) or not isinstance(member, (int, np.integer)):
            raise InputError(f"superclass {name!r} lists {member!r}, which is no class index")
        if member < 0:
            raise InputError(f"superclass {name!r} lists class {member}; classes are numbered from 0")
        found.append(int(member))
    return tuple(found)


def _lists_wordnet(listed: object) -> bool:
    return isinstance(listed, Sequence) and any(
        isinstance(member, str) and re.fullmatch(r"n\d{8}", member) for member in listed
    )


def _wordnet_numbers() -> dict[str, int]:
    """ImageNet-1k's number of each WordNet identifier."""
    from timm.data import ImageNetInfo

    return {name: number for number, name in enumerate(ImageNetInfo().label_names())}


def _class_numbers(class_index: Mapping[str, int] | str | Path | None) -> dict[str, int]:
    if class_index is None:
        return {}
    if isinstance(class_index, (str, Path)):
        listed = _read_json(class_index, "class index")
        if all(key.isdigit() for key in listed):
            named = {key: [names] if isinstance(names, str) else names for key, names in listed.items()}
            for key, names in named.items():
                if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                    raise InputError(
                        f"class index {class_index} gives class {key} the name {names!r}, which is no text"
                    )
            return {name: int(key) for key, names in named.items() for name in names}
        class_index = listed
    for name, number in class_index.items():
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
            raise InputError(f"the class index numbers {name!r} with {number!r}, which is no class number")
    return dict(class_index)


def _read_json(path: str | Path, what: str) -> dict:
    file = check_file(path, what)
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{what} {file} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{what} {file} must hold an object, not a {type(value).__name__}")
    return value

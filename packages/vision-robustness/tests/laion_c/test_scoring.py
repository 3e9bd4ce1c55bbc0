"""The superclass score against a plain loop, its cross-over, the mapping, and what is refused."""

import json
import math
import re

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.vision_robustness.laion_c import SUPERCLASSES, SuperclassMapper, error_consistency, superclass_of


def test_there_are_285_classes_in_16_superclasses_and_none_in_two():
    members = [index for indices in SUPERCLASSES.values() for index in indices]
    assert len(SUPERCLASSES) == 16
    assert len(members) == len(set(members)) == 285
    assert all(0 <= index < 1000 for index in members)
    counts = {name: len(indices) for name, indices in SUPERCLASSES.items()}
    assert counts == {
        "fruit": 6, "fish": 12, "tools": 7, "instruments": 13, "ball": 6, "primate": 18, "snakes": 16,
        "timekeeping": 6, "chair": 6, "butterfly": 6, "boat": 7, "cat": 6, "bottle": 7, "car_truck": 11,
        "bird": 49, "dog": 109,
    }  # fmt: skip


def test_members_are_the_classes_that_their_superclass_names():
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    words = {
        "ball": "ball", "butterfly": "butterfl|monarch|admiral|ringlet", "cat": "cat|Persian|tabby",
        "chair": "chair|throne|seat|bench|couch", "snakes": "snake|python|boa|mamba|cobra|viper|rattler",
        "timekeeping": "clock|watch|sundial|timepiece", "boat": "boat|gondola|ship|catamaran|canoe|liner",
    }  # fmt: skip
    for name, pattern in words.items():
        for index in SUPERCLASSES[name]:
            description = info.index_to_description(index, detailed=True)
            assert re.search(pattern, description, re.IGNORECASE), (name, index, description)
    # WordNet identifiers of a few, as the official mapping lists them.
    listed = {
        "n07742313": "fruit",
        "n02655020": "fish",
        "n04154565": "tools",
        "n02113978": "dog",
        "n04285008": "car_truck",
    }
    labels = info.label_names()
    for identifier, name in listed.items():
        assert superclass_of(labels.index(identifier)) == name
    assert superclass_of(999) is None


def test_scores_equal_a_plain_loop():
    logits = np.random.default_rng(0).normal(0, 3, (20, 1000))
    expected = []
    for row in logits:
        probabilities = [math.exp(value) for value in row]
        total = sum(probabilities)
        expected.append(
            [
                sum(probabilities[i] / total for i in members) / len(members)
                for members in SUPERCLASSES.values()
            ]
        )
    mapper = SuperclassMapper()
    # 1000 additions in another order: relative error below 1000 * 2^-53.
    np.testing.assert_allclose(mapper.scores_of_logits(logits), expected, rtol=1e-12)
    assert mapper.predict(logits).tolist() == [row.index(max(row)) for row in expected]


def test_one_dog_wins_over_one_fruit_from_a_logit_ahead_by_ln_109_over_6():
    mapper = SuperclassMapper()
    crossing = math.log(109 / 6)
    assert crossing == pytest.approx(2.90, abs=0.005)
    logits = np.full((2, 1000), -50.0)
    logits[:, 948] = 0.0
    logits[:, 151 + 1] = (crossing - 1e-6, crossing + 1e-6)
    assert [mapper.names[index] for index in mapper.predict(logits)] == ["fruit", "dog"]


def test_classes_outside_the_mapping_are_ignored():
    logits = np.zeros((1, 1000))
    logits[0, 999] = 40.0  # the 1000-way answer
    logits[0, 8] = 5.0  # a hen
    assert SuperclassMapper().names[SuperclassMapper().predict(logits)[0]] == "bird"


def test_logits_of_any_size_do_not_overflow():
    scores = SuperclassMapper().scores_of_logits(np.full((1, 1000), 1e4))
    np.testing.assert_allclose(scores, 1e-3, rtol=1e-12)


def test_a_mapping_of_another_data_set_works(tmp_path):
    (tmp_path / "mapping.json").write_text(json.dumps({"animal": ["cat", "dog"], "vehicle": ["car"]}))
    (tmp_path / "index.json").write_text(json.dumps({"car": 0, "cat": 1, "dog": 2, "other": 3}))
    mapper = SuperclassMapper(tmp_path / "mapping.json", tmp_path / "index.json")
    assert mapper.classes == 4
    np.testing.assert_allclose(mapper.scores(np.array([[0.4, 0.3, 0.2, 0.1]])), [[0.25, 0.4]])


def test_wordnet_identifiers_need_no_class_index(tmp_path):
    from timm.data import ImageNetInfo

    labels = ImageNetInfo().label_names()
    official = {name: [labels[index] for index in members] for name, members in SUPERCLASSES.items()}
    (tmp_path / "category_mapping.json").write_text(json.dumps(official))
    mapper = SuperclassMapper(tmp_path / "category_mapping.json")
    assert mapper.members == dict(SUPERCLASSES)
    assert mapper.classes == 1000


def test_a_class_index_in_the_form_of_keras_is_read(tmp_path):
    (tmp_path / "mapping.json").write_text(json.dumps({"fish": ["n01440764"], "bird": ["hen", 2]}))
    index = {"0": ["n01440764", "tench"], "1": ["n01514859", "hen"], "2": ["n01518878", "ostrich"]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    mapper = SuperclassMapper(tmp_path / "mapping.json", tmp_path / "index.json")
    assert mapper.members == {"fish": (0,), "bird": (1, 2)}


# -- error consistency ------------------------------------------------------------------------------------


def test_error_consistency_is_cohen_s_kappa():
    # The textbook table 20, 5, 10, 15: 35 of 50 agree, 25 of 50 would by chance, kappa = (0.7 - 0.5) / 0.5.
    first = np.array([True] * 25 + [False] * 25)
    second = np.array([True] * 20 + [False] * 5 + [True] * 10 + [False] * 15)
    assert error_consistency(first, second) == pytest.approx(0.4, abs=1e-12)


def test_error_consistency_of_the_same_the_opposite_and_the_always_right():
    answers = np.array([True, True, False, False])
    assert error_consistency(answers, answers) == 1
    assert error_consistency(answers, ~answers) == -1
    assert math.isnan(error_consistency(np.ones(3, bool), np.ones(3, bool)))


@pytest.mark.parametrize(("first", "second"), [([True], [True, False]), ([], []), ([1, 0], [1, 0])])
def test_answers_that_are_no_pairs_of_booleans_are_refused(first, second):
    with pytest.raises(InputError):
        error_consistency(np.array(first), np.array(second))


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 999), (4, 1001), (1000,), (4, 21841)])
def test_logits_that_are_not_1000_wide_are_refused(shape):
    with pytest.raises(InputError, match=r"must have shape \(batch, 1000\)"):
        SuperclassMapper().predict(np.zeros(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_logits_are_refused_with_their_row(value):
    logits = np.zeros((5, 1000))
    logits[3, 7] = value
    with pytest.raises(InputError, match="of row 3 hold NaN or infinity"):
        SuperclassMapper().predict(logits)


def test_logits_given_as_probabilities_are_refused():
    with pytest.raises(InputError, match="if they are logits"):
        SuperclassMapper().scores(np.full((1, 1000), 2.0))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "is empty"),
        ({"a": []}, "must list its classes"),
        ({"a": "cat"}, "must list its classes"),
        ({"a": [1, 2], "b": [2]}, "class 2 is in 'a' and 'b'"),
        ({"a": [1, 1]}, "class 1 is in 'a' twice"),
        ({"a": ["n01440764", 1000]}, "class 1000 of a classifier of 1000"),
        ({"a": [-1]}, "class -1; classes are numbered from 0"),
        ({"a": [1.5]}, "1.5, which is no class index"),
        ({"a": ["tench"]}, "--class-index FILE"),
        ({"a": ["n99999999"]}, "unknown class 'n99999999'"),
    ],
)
def test_mappings_that_make_no_sense_are_refused(mapping, message):
    with pytest.raises(InputError, match=message):
        SuperclassMapper(mapping)


def test_a_mapping_of_numbers_takes_its_width_from_the_logits():
    mapper = SuperclassMapper({"animal": [2, 3, 4], "vehicle": [0, 1]})
    assert mapper.predict(np.eye(10)[[3, 1]] * 9).tolist() == [0, 1]
    np.testing.assert_allclose(mapper.scores(np.full((1, 10), 0.1)), 0.1)
    assert SuperclassMapper().classes == 1000
    with pytest.raises(InputError, match="superclass 'animal' lists class 4 of a classifier of 4 classes"):
        mapper.predict(np.zeros((1, 4)))
    with pytest.raises(InputError, match=r"must have shape \(batch, classes\), not \(10,\)"):
        mapper.predict(np.zeros(10))


def test_tensors_with_a_gradient_or_of_16_bits_are_scored():
    logits = torch.zeros(2, 1000)
    logits[:, 8] = 9
    for tensor in (logits.clone().requires_grad_(), logits.bfloat16()):
        assert SuperclassMapper().predict(tensor).tolist() == [1, 1]


@pytest.mark.parametrize("index", [{"0": 5}, {"0": [5]}, {"cat": True}, {"cat": "0"}, {"cat": -1}])
def test_a_class_index_that_makes_no_sense_is_refused(index, tmp_path):
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="class index"):
        SuperclassMapper({"a": ["cat"]}, tmp_path / "index.json")


def test_a_mapping_file_that_is_missing_or_no_object_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        SuperclassMapper(tmp_path / "mapping.json")
    (tmp_path / "mapping.json").write_text("[1, 2")
    with pytest.raises(InputError, match="is no JSON"):
        SuperclassMapper(tmp_path / "mapping.json")
    (tmp_path / "mapping.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="must hold an object"):
        SuperclassMapper(tmp_path / "mapping.json")

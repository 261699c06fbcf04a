"""The built-in text is what the samples and every offline run stand on."""

from analyzers.language_models.builtin_text import Pair, builtin_pairs


def test_there_are_64_different_pairs() -> None:
    pairs = builtin_pairs()
    assert len(pairs) == 64
    assert len(set(pairs)) == 64
    assert len({pair.prompt for pair in pairs}) == 64


def test_no_pair_is_empty_or_untrimmed() -> None:
    for pair in builtin_pairs():
        assert pair.instruction and pair.output
        assert [pair.instruction, pair.input, pair.output] == [part.strip() for part in (pair.instruction, pair.input, pair.output)]


def test_answers_run_from_one_word_to_about_120() -> None:
    lengths = sorted(len(pair.output.split()) for pair in builtin_pairs())
    assert lengths[0] == 1
    assert 100 <= lengths[-1] <= 130
    assert sum(length <= 3 for length in lengths) >= 8
    assert sum(10 <= length <= 40 for length in lengths) >= 16
    assert sum(length > 40 for length in lengths) >= 6


def test_some_pairs_have_an_input_and_some_have_none() -> None:
    with_input = sum(bool(pair.input) for pair in builtin_pairs())
    assert 16 <= with_input <= 48


def test_a_prompt_ends_in_a_blank_line() -> None:
    assert Pair("Add.", "", "3").prompt == "Add.\n\n"
    assert Pair("Add.", "1 and 2", "3").prompt == "Add.\n1 and 2\n\n"

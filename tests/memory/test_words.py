"""Search by words, the glossary, token counting and the embedders."""

from __future__ import annotations

import importlib.metadata
import math

import pytest

from kernelcrew.errors import MissingTool, UnknownName
from kernelcrew.memory import embed, lexical, tokens


def test_words_join_forms_and_split_names():
    assert lexical.words("Vectorised loops") == lexical.words("vectorized loop")
    assert {"multi_accumulator", "multi", "accumulator"} <= set(lexical.words("multi_accumulator"))
    assert lexical.words("占用率") == ["占用", "用率"] and lexical.words("the of") == []


def test_scores_rank_by_shared_terms_and_ignore_the_rest():
    found = lexical.scores("bank conflicts", ["padding removes bank conflicts", "a bank", "nothing here"])
    assert found[0] > found[1] > found[2] == 0
    assert lexical.scores("anything", []) == []


@pytest.mark.parametrize("question", ["too few active warps", "占用率低", "resident warps"])
def test_the_glossary_ties_phrases_of_one_meaning(question):
    hit, miss = lexical.scores(question, ["low occupancy", "padding of the rows"])
    assert hit > 0 and miss == 0


def test_no_phrase_stands_in_two_groups():
    phrases = [phrase for group in lexical.glossary() for phrase in set(group)]
    assert len(phrases) == len(set(phrases)) and all(phrases)


def test_nearness_is_one_for_the_same_and_zero_for_nothing_shared():
    assert lexical.nearness("a serial chain", "the serial chains") == pytest.approx(1.0)
    assert lexical.nearness("serial chain", "padding") == 0.0 == lexical.nearness("", "")


def test_tokens_are_those_of_cl100k():
    assert tokens.counter_name() == "cl100k"
    assert tokens.count("hello world") == 2 and tokens.count("") == 0
    assert tokens.count("<|endoftext|>") > 1, "special tokens in a text are plain text"


def test_clip_keeps_a_beginning_and_marks_the_cut():
    text = "one two three four five six seven eight nine ten"
    assert tokens.clip(text, 10) == text
    cut = tokens.clip(text, 6)
    assert cut.startswith("one two") and cut.endswith("[...]") and tokens.count(cut) <= 6
    assert tokens.clip(text, 0) == ""


def test_without_the_data_file_characters_are_counted_and_that_is_said(monkeypatch):
    def gone(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tokens.importlib.metadata, "distribution", gone)
    counter = tokens._counter.__wrapped__()
    assert counter.count("12345") == 2 and "4 characters" in counter.name


def test_hashing_gives_unit_vectors_that_depend_on_the_words_alone():
    hashing = embed.Hashing()
    a, b, nothing = hashing.embed(["bank conflicts", "Bank conflict", ""])
    assert a == b and len(nothing) == hashing.dimension
    assert all(math.isclose(math.hypot(*v), 1.0) for v in (a, nothing))


def test_an_unknown_embedder_names_the_known_ones():
    with pytest.raises(UnknownName, match="lexical, minilm"):
        embed.make("word2vec")
    assert embed.make("lexical").semantic is False


def test_a_missing_or_altered_model_falls_back_to_words_and_says_so(monkeypatch, tmp_path):
    def gone(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    chosen, note = embed.choose("minilm")
    assert chosen.name == embed.MiniLm.name and note == ""
    monkeypatch.setattr(embed.importlib.metadata, "distribution", gone)
    chosen, note = embed.choose("minilm")
    assert not chosen.semantic and "by words alone" in note

    class Altered:
        def locate_file(self, name: str) -> object:
            return tmp_path / "model.onnx"

    (tmp_path / "model.onnx").write_bytes(b"another model")
    monkeypatch.setattr(embed.importlib.metadata, "distribution", lambda name: Altered())
    with pytest.raises(MissingTool, match="SHA-256"):
        embed._model_bytes()

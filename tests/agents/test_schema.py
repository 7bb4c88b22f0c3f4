"""Schemas as servers take them, and the JSON found in an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from kernelcrew.agents.forms import ANSWERS
from kernelcrew.agents.nouns import BottleneckSummary, ProposalSet
from kernelcrew.agents.schema import SHOWN, argument_schema, describe, json_object_in, strict_schema
from kernelcrew.record import Record


def objects(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for item in node for found in objects(item)]
    if not isinstance(node, dict):
        return []
    mine = [node] if node.get("type") == "object" else []
    return mine + [found for value in node.values() for found in objects(value)]


@pytest.mark.parametrize("kind", [kind for kind, _ in ANSWERS.values()])
def test_answers_are_closed_and_stand_without_references(kind: type[Record]) -> None:
    schema = strict_schema(kind)
    text = json.dumps(schema)
    assert "$ref" not in text and "$defs" not in text
    assert objects(schema)
    for node in objects(schema):
        assert node["additionalProperties"] is False and node["required"] == list(node["properties"])


def test_descriptions_stay_and_a_field_called_title_is_no_title() -> None:
    proposal = strict_schema(ProposalSet)["properties"]["proposals"]["items"]["properties"]
    assert proposal["title"] == {"description": "One line.", "type": "string"}
    assert "title" not in strict_schema(ProposalSet)


def test_arguments_may_stay_optional() -> None:
    class Args(Record):
        """Arguments."""

        text: str
        """What."""
        n: int = 3
        """How many."""

    schema = argument_schema(Args.model_json_schema())
    assert schema["required"] == ["text"] and set(schema["properties"]) == {"text", "n"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('Sure:\n```json\n{"a": {"b": 2}}\n```\nbye', '{"a": {"b": 2}}'),
        ('{not json} then {"a": "}"}', '{"a": "}"}'),
        ("nothing here ", "nothing here"),
        ('{"a": 1', '{"a": 1'),
        ("", ""),
    ],
)
def test_the_first_object_is_found(text: str, found: str) -> None:
    assert json_object_in(text) == found


def test_what_is_wrong_is_told_by_place_and_bounded() -> None:
    with pytest.raises(ValidationError) as caught:
        BottleneckSummary.model_validate({"bottlenecks": [{}, {}], "grade": 1, "text": "x"})
    told = describe(caught.value).splitlines()
    assert told[0] == "- bottlenecks.0.id: Field required"
    assert len(told) == SHOWN + 1 and told[-1].endswith("more")

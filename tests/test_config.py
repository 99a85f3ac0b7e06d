"""What the file says -> a validated configuration."""

import datetime as dt
import re
from pathlib import Path

import pytest

from rankspark import config
from rankspark.errors import ConfigError
from rankspark.measures import Measure

MINIMAL = """
name = "web"
[input]
path = "logs"
[input.columns]
date = "date"
experiment = "experiment"
variant = "variant"
query_id = "query_id"
item_id = "item_id"
position = "position"
relevance = "clicked"
[output]
path = "out"
"""


@pytest.fixture
def load(tmp_path: Path):
    def load(text: str, *overrides: str) -> config.Config:
        file = tmp_path / "config.toml"
        file.write_text(text)
        return config.load(file, overrides)

    return load


def test_defaults_are_those_of_the_design(load) -> None:
    loaded = load(MINIMAL)
    assert loaded.evaluate.no_relevant == "zero"
    assert loaded.evaluate.negative_grades == "reject"
    assert loaded.evaluate.tied_scores == "item_id"
    assert loaded.rankers == {"logged": "position"}
    assert loaded.input.position_base == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[output]", "[outputs]"), "unknown key 'outputs'; did you mean 'output'"),
        (("[input]", "[input]\nfromat = 'orc'"), "did you mean 'input.format'"),
        (("[output]", "[evaluate]\nmeasures = ['ndgc@10']\n[output]"), "ndgc"),
        (("[output]", "[evaluate]\nmeasures = ['ndcg@0']\n[output]"), "0"),
        (("[output]", "[evaluate]\nmeasures = []\n[output]"), "no measure"),
        (("[output]", "[evaluate]\nslices = ['n_items']\n[output]"), "n_items"),
        (("[output]", "[evaluate]\nslices = ['Position']\n[output]"), "'Position'"),
        (("[output]", "[evaluate]\nslices = ['items*device']\n[output]"), "'items'"),
        (("[output]", "[evaluate]\nno_relevant = 'one'\n[output]"), "'zero' or 'skip'"),
        (('path = "logs"', 'path = "logs"\ntable = "t"'), "exactly one of path and table"),
        (('path = "logs"', ""), "exactly one of path and table"),
        (('position = "position"\n', ""), "input.columns.position is missing"),
        (('variant = "variant"\n', ""), "needs experiment and variant"),
        (('item_id = "item_id"\n', ""), "input.columns.item_id is missing"),
        (('path = "logs"', 'path = "logs/{{ ds }}"'), "{{ ds }}"),
        (('path = "logs"', 'path = "logs"\ntimezone = "Mars"'), "Mars"),
        (('query_id = "query_id"', 'query_id = "query_id"\ncountry = "c"'), "evaluate.slices"),
        (('relevance = "clicked"', 'relevance = " "'), "empty expression"),
        (("[input]", "[input"), "TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(load, change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(MINIMAL.replace(*change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        config.load(tmp_path / "nowhere.toml")


def test_overrides_take_toml_values_and_plain_text(load) -> None:
    loaded = load(
        MINIMAL,
        "output.path=/tmp/x",
        "evaluate.measures=['hit@3']",
        "limits.max_list_length=5",
        "evaluate.relevant_from=2",
    )
    assert loaded.output.path == "/tmp/x"
    assert loaded.measures == (Measure.parse("hit@3"),)
    assert loaded.limits.max_list_length == 5
    assert loaded.evaluate.relevant_from == 2


@pytest.mark.parametrize("override", ["nothing", "=x", "name.deeper=1"])
def test_a_malformed_override_is_refused(load, override: str) -> None:
    with pytest.raises(ConfigError):
        load(MINIMAL, override)


def test_measures_stand_once_in_canonical_form(load) -> None:
    loaded = load(MINIMAL, "evaluate.measures=['ndcg@10', 'mrr', 'ndcg@10']")
    assert [str(measure) for measure in loaded.measures] == ["ndcg@10", "mrr"]


def test_the_definition_changes_with_what_changes_the_value_and_with_nothing_else(load) -> None:
    measure = Measure.parse("mrr")
    base = load(MINIMAL).definition_id(measure)
    same = [
        "output.path=elsewhere",
        "evaluate.slices=['country']",
        "name=other",
        "evaluate.measures=['mrr']",
    ]
    other = [
        "evaluate.no_relevant=skip",
        "evaluate.relevant_from=2",
        "evaluate.negative=zero",
        "evaluate.rank=order",
        "input.position_base=0",
        "input.columns.relevance=purchased",
    ]
    assert {load(MINIMAL, change).definition_id(measure) for change in same} == {base}
    changed = [load(MINIMAL, change).definition_id(measure) for change in other]
    assert len({base, *changed}) == len(other) + 1
    assert load(MINIMAL).definition_id(Measure.parse("mrr@10")) != base


def test_dates_are_listed_or_a_half_open_range() -> None:
    assert config.parse_dates(["2024-03-02", "2024-03-01", "2024-03-02"]) == (
        dt.date(2024, 3, 1),
        dt.date(2024, 3, 2),
    )
    assert config.parse_dates(start="2024-02-28", end="2024-03-01") == (
        dt.date(2024, 2, 28),
        dt.date(2024, 2, 29),
    )


@pytest.mark.parametrize(
    ("dates", "start", "end", "said"),
    [
        ([], None, None, "--date"),
        (["2024-03-01"], "2024-03-01", "2024-03-02", "one of the two"),
        ([], "2024-03-01", None, "--end"),
        ([], "2024-03-02", "2024-03-02", "--end 2024-03-03"),
        ([], "2024-03-02", "2024-03-01", "after the start"),
        (["{{ ds }}"], None, None, "render its template"),
        (["2024-02-30"], None, None, "2024-02-30"),
        (["20240301"], None, None, "YYYY-MM-DD"),
    ],
)
def test_wrong_dates_are_refused(dates, start, end, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config.parse_dates(dates, start, end)

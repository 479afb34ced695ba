"""The task and the columns are found, and every doubt is said with the flag that settles it."""

import pytest

from holdfast.core.errors import RequestError, set_to
from holdfast.data.data_request import DataRequest
from holdfast.data.detect import detect
from holdfast.data.label_forms import in_order
from holdfast.data.profile import ColumnProfiles
from tests.unit.data.conftest import sentences

TEXTS = sentences(40)
OTHERS = sentences(40, seed=1)


def profiles_of(rows):
    found = ColumnProfiles()
    found.add(enumerate(rows))
    return found.profiles


def detected(rows, **given):
    profiles = profiles_of(rows)
    return detect(DataRequest(path="x", **given), profiles)


def table(**columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def labels(*names):
    return [names[at % len(names)] for at in range(40)]


class TestTasks:
    @pytest.mark.parametrize(
        ("columns", "task", "form"),
        [
            ({"text": TEXTS, "label": labels("a", "b")}, "classify", "one label"),
            ({"Review Text": TEXTS, "Sentiment": labels("a", "b")}, "classify", "one label"),
            ({"c1": TEXTS, "c2": labels("a", "b")}, "classify", "one label"),
            ({"text": TEXTS, "labels": labels(["a"], ["a", "b"], [])}, "classify", "several labels"),
            ({"text": TEXTS, "labels": labels("a|b", "b", "a|c", "")}, "classify", "several labels"),
            ({"text": TEXTS, "topics": labels("['a', 'b']", "['b']")}, "classify", "several labels"),
            ({"text": TEXTS, "toxic": labels(0, 1), "insult": labels(0, 0, 1)}, "classify", "several labels"),
            ({"question1": TEXTS, "question2": OTHERS, "is_duplicate": labels(0, 1)}, "classify", "one label"),
            ({"Class Index": labels(1, 2, 3), "Title": OTHERS, "Description": TEXTS}, "classify", "one label"),
            ({"v1": labels("ham", "spam"), "v2": TEXTS, "Unnamed: 2": labels("")}, "classify", "one label"),
            ({"premise": TEXTS, "hypothesis": OTHERS, "label": labels(0, 1, 2)}, "classify", "one label"),
            ({"instruction": TEXTS, "input": labels("", "x y"), "output": OTHERS}, "causal", "instruction"),
            ({"prompt": TEXTS, "completion": OTHERS}, "causal", "prompt and answer"),
            ({"prompt": TEXTS, "chosen": OTHERS, "rejected": TEXTS}, "causal", "prompt and answer"),
            ({"messages": [[{"role": "user", "content": text}] for text in TEXTS]}, "causal", "messages"),
            ({"conversations": [[{"from": "human", "value": text}] for text in TEXTS]}, "causal", "messages"),
            ({"text": TEXTS}, "causal", "text"),
            ({"anchor": TEXTS, "positive": OTHERS}, "two-tower", "pairs"),
            ({"anchor": TEXTS, "positive": OTHERS, "negative": TEXTS}, "two-tower", "triplets"),
            ({"query": TEXTS, "pos": labels([TEXTS[0]]), "neg": labels(OTHERS[:2])}, "two-tower", "lists"),
            ({"query": TEXTS, "passage": OTHERS, "negative_1": TEXTS, "negative_2": OTHERS}, "two-tower", "triplets"),
            ({"question": TEXTS, "context": OTHERS}, "two-tower", "pairs"),
            ({"sentence1": TEXTS, "sentence2": OTHERS, "score": labels(0.1, 2.5, 4.9)}, "two-tower", "scored pairs"),
            ({"_id": OTHERS, "article_id": labels("x", "y"), "text": TEXTS}, "two-tower", "passages of articles"),
        ],
    )  # fmt: skip
    def test_is_found_by_the_columns(self, columns, task, form):
        layout = detected(table(**columns))
        assert (layout.task, layout.form) == (task, form)
        assert all(choice.because for choice in layout.choices.values())

    def test_another_possible_task_is_reported(self):
        rows = table(question=TEXTS, answer=OTHERS)
        layout = detected(rows)
        assert layout.task == "causal"
        (found,) = layout.warnings
        assert (found.kind, found.action.setting, found.action.value) == ("other-task", "task", "two-tower")
        assert detected(rows, task="two-tower").form == "pairs"
        assert not detected(rows, task="two-tower").warnings

    def test_unnamed_columns_are_used_in_order_on_request(self):
        layout = detected(table(column_1=TEXTS, column_2=OTHERS, column_3=TEXTS), task="two-tower")
        assert (layout.form, layout.roles["negative"]) == ("triplets", ("column_3",))

    def test_plain_names_leave_no_doubt(self):
        assert not detected(table(instruction=TEXTS, output=OTHERS, kind=labels("a", "b"))).warnings
        assert not detected(table(text=TEXTS, label=labels("a", "b"), article_id=labels("x", "y"))).warnings

    def test_rejected_answers_are_not_used(self):
        layout = detected(table(prompt=TEXTS, chosen=OTHERS, rejected=TEXTS))
        assert [(one.kind, one.values) for one in layout.warnings] == [("unused-preferences", {"column": "rejected"})]

    def test_numbers_alone_are_refused_with_what_the_columns_hold(self):
        with pytest.raises(RequestError, match="nothing") as caught:
            detected(table(a=list(range(40)), b=list(range(40))))
        assert "'a' (number, 40 different)" in caught.value.found


class TestColumns:
    def test_names_win_over_content(self):
        layout = detected(table(text=TEXTS, label=labels("a", "b", "c"), kind=labels("x", "y")))
        assert layout.column("label") == "label"
        assert layout.choices["label column"].because == "named 'label'"

    def test_content_decides_where_names_do_not(self):
        layout = detected(
            table(number=list(range(40)), stuff=TEXTS, verdict=labels("a", "b"), section=labels(*"pqrst"))
        )
        assert (layout.column("text"), layout.column("label")) == ("stuff", "verdict")
        assert "40 rows" in layout.choices["label column"].because

    def test_a_file_sorted_by_label_shows_all_of_them(self):
        rows = table(c1=TEXTS, c2=sorted(labels("a", "b")))
        assert detected(rows).column("label") == "c2"

    def test_names_of_labels_win_over_their_numbers(self):
        layout = detected(table(text=TEXTS, label=labels(0, 1), label_text=labels("neg", "pos")))
        assert layout.column("label") == "label_text"

    def test_an_unread_title_is_reported(self):
        layout = detected(table(title=OTHERS, abstract=TEXTS, label=labels("a", "b")))
        assert layout.roles["text"] == ("abstract",)
        (found,) = layout.warnings
        assert (found.kind, found.values, found.action.setting) == ("unread-title", {"column": "title"}, "text_column")
        both = detected(table(title=OTHERS, abstract=TEXTS, label=labels("a", "b")), text_columns=("title", "abstract"))
        assert both.roles["text"] == ("title", "abstract")

    def test_a_misspelt_column_gets_a_guess(self):
        with pytest.raises(RequestError, match="'lable'") as caught:
            detected(table(text=TEXTS, label=labels("a", "b")), label_column="lable")
        assert caught.value.try_next == (set_to("label_column", "label"),)

    @pytest.mark.parametrize("column", ["text", "label"])
    def test_one_column_cannot_be_text_and_label(self, column):
        with pytest.raises(RequestError) as caught:
            detected(table(text=TEXTS, label=labels("a", "b")), text_columns=(column,), label_column=column)
        assert (caught.value.exit_code, caught.value.setting) == (2, "label_column")

    def test_labels_requested_as_text_need_a_task(self):
        rows = table(text=TEXTS, label=labels("a", "b"))
        with pytest.raises(RequestError) as caught:
            detected(rows, text_columns=("label",))
        assert caught.value.setting == "text_column"
        assert (caught.value.action.setting, caught.value.action.value) == ("label_column", "label")
        assert detected(rows, text_columns=("label",), task="causal").roles == {"text": ("label",)}

    def test_texts_with_a_score_need_a_task(self):
        rows = table(text=TEXTS, score=[at / 7 for at in range(40)])
        with pytest.raises(RequestError, match="'score'") as caught:
            detected(rows)
        assert (caught.value.action.setting, caught.value.action.value) == ("task", "causal")
        assert detected(rows, task="causal").roles == {"text": ("text",)}
        assert detected(rows, text_columns=("text",)).form == "text"

    def test_a_repeated_name_is_refused_only_when_it_is_needed(self):
        profiles = profiles_of(table(text=TEXTS, label=labels("a", "b"), x=TEXTS, x_2=TEXTS))
        request = DataRequest(path="x")
        assert detect(request, profiles, ("x",)).column("text") == "text"
        with pytest.raises(RequestError, match="'text'"):
            detect(request, profiles, ("text",))


class TestLabels:
    def read(self, values, name="label", **given):
        layout = detected(table(text=TEXTS, **{name: values}), **given)
        assert layout.labels is not None
        return sorted({label for value in values for label in layout.labels.read({name: value})})

    def test_names_with_commas_are_not_split(self):
        assert self.read(labels("Smith, John", "Doe, Jane")) == ["Doe, Jane", "Smith, John"]

    def test_recurring_names_are_split(self):
        assert self.read(labels("a, b", "b", "a, c", "c", "b, c"), "tags") == ["a", "b", "c"]

    def test_floats_that_stand_for_whole_numbers(self):
        assert self.read(labels("0.0", "1.0")) == ["0", "1"]
        assert self.read(labels(0.0, 1)) == ["0", "1"]

    def test_bools_spaces_and_emoji(self):
        assert self.read(labels(True, False)) == ["false", "true"]
        assert self.read(labels(" pos", "pos ", "neg")) == ["neg", "pos"]
        assert self.read(labels("😀", "😡")) == ["😀", "😡"]

    def test_requested_values_take_precedence(self):
        assert self.read(labels("a|b", "b"), multi_label=False) == ["a|b", "b"]
        assert self.read(labels("a", "b,c"), multi_label=True) == ["a", "b", "c"]

    def test_numbers_are_ordered_as_numbers(self):
        assert in_order(["10", "9", "1"]) == ["1", "9", "10"]
        assert in_order(["b", "10", "a"]) == ["10", "a", "b"]

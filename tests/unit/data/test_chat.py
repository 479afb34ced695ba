"""Conversations are rendered by the model's template, and the answers are found in the text."""

import pytest

from holdfast.core.errors import RequestError
from holdfast.data.chat import HEADINGS, CannotRender, Chat
from holdfast.data.tokenizer import ModelTokenizer

TURNS = (("user", "Hello?"), ("assistant", "Hi."), ("user", "Bye?"), ("assistant", "Hello? Bye."))


def answers(chat, turns):
    text, spans = chat.render(turns)
    return text, [text[start:end] for start, end in spans]


def test_every_answer_is_found_with_its_end_mark(chat_folder):
    text, found = answers(Chat(ModelTokenizer(chat_folder)), TURNS)
    assert found == ["Hi.<|end|>", "Hello? Bye.<|end|>"]
    assert text.startswith("<|start|>system\nBe kind.<|end|>\n<|start|>user\nHello?<|end|>")


def test_a_model_without_a_template_gets_headings(bert_folder):
    chat = Chat(ModelTokenizer(bert_folder))
    assert chat.source == HEADINGS
    text, found = answers(chat, (("system", "Be brief."), *TURNS[:2]))
    assert text == "Be brief.\n\n### Instruction:\nHello?\n\n### Response:\nHi.\n\n"
    assert found == ["Hi."]


def test_a_template_that_treats_the_last_answer_otherwise(chat_folder):
    template = (
        "{% for message in messages %}{{ message.role }}: "
        "{% if loop.last and message.role == 'assistant' %}(thinking) {% endif %}{{ message.content }}</s> {% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    _, found = answers(Chat(ModelTokenizer(chat_folder), template), TURNS)
    assert found == ["Hi.", "(thinking) Hello? Bye.</s>"]


def test_generation_marks_and_loop_controls_are_understood(chat_folder):
    template = (
        "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
        "[{% generation %}{{ message.content }}{% endgeneration %}]{% endfor %}"
        "{% if add_generation_prompt %}[{% endif %}"
    )
    assert answers(Chat(ModelTokenizer(chat_folder), template), TURNS[:2])[1] == ["Hi.]"]


def test_a_refusal_of_the_template_is_passed_on(chat_folder):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    with pytest.raises(CannotRender, match="no system role"):
        Chat(ModelTokenizer(chat_folder), template).render((("system", "a"), ("assistant", "b")))


def test_a_template_cannot_reach_the_machine(chat_folder):
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(CannotRender):
        Chat(ModelTokenizer(chat_folder), template).render(TURNS)


def test_a_broken_template_is_refused(chat_folder):
    with pytest.raises(RequestError, match="not valid"):
        Chat(ModelTokenizer(chat_folder), "{% for x %}")

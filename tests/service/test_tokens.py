"""Keys to the API: shown once, kept as a hash, refused when they are over."""

from datetime import timedelta

import pytest
from django.utils import timezone

from holdfast.core.errors import RequestError
from holdfast.core.redact import Redactor
from holdfast.service.jobs.models import ApiToken
from holdfast.service.jobs.tokens import find_token, make_token

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(django_user_model):
    return django_user_model.objects.create_user("ada", password="a long enough one")


def test_a_token_is_found_by_its_text_and_only_its_hash_is_kept(ada):
    token, text = make_token(ada, "laptop")
    assert find_token(text) == token
    assert not any(text in str(value) or text[12:] in str(value) for value in ApiToken.objects.values_list().get())


def test_a_wrong_letter_is_a_wrong_token(ada):
    _, text = make_token(ada, "laptop")
    for wrong in (text[:-1] + ("a" if text[-1] != "a" else "b"), text[:-1], text + "a", "", "hfk_", "\ud800" * 44):
        assert find_token(wrong) is None


def test_a_token_that_has_expired_or_whose_owner_may_not_log_in_is_refused(ada):
    token, text = make_token(ada, "laptop", expires=timezone.now() + timedelta(hours=1))
    assert find_token(text)
    ApiToken.objects.filter(pk=token.pk).update(expires=timezone.now() - timedelta(seconds=1))
    assert find_token(text) is None
    ApiToken.objects.filter(pk=token.pk).update(expires=None)
    ada.is_active = False
    ada.save()
    assert find_token(text) is None


def test_the_last_use_is_noted_once_a_minute(ada, django_assert_num_queries):
    _, text = make_token(ada, "laptop")
    find_token(text)
    assert ApiToken.objects.get().used is not None
    with django_assert_num_queries(1):
        find_token(text)


def test_a_token_without_a_name_or_in_the_past_is_not_made(ada):
    with pytest.raises(RequestError) as caught:
        make_token(ada, "  ", expires=timezone.now() - timedelta(days=1))
    assert "name" in caught.value.seen
    assert "expired" in caught.value.seen


def test_a_token_in_a_text_is_taken_out_by_its_shape(ada):
    _, text = make_token(ada, "laptop")
    assert text not in Redactor()(f"curl -H 'Authorization: {text}'")

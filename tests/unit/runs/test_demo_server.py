"""What is checked before a page is served; the page itself is in tests/lab/test_demo_page.py."""

import socket

import pytest

from holdfast.core.errors import RequestError
from holdfast.runs import demo_server as demo
from holdfast.runs.demo_server import free_port, require_gradio


def test_without_gradio_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(RequestError) as error:
        require_gradio()
    assert error.value.try_next == ("pip install 'holdfast[demo]'",)


def test_a_port_in_use_is_refused_and_otherwise_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=f"port {port} is in use"):
            free_port(port)
    assert free_port(None) >= 7860

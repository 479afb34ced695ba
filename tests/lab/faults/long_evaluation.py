"""Healthy: after quick steps an evaluation that nobody announced, twenty times as long as the budget of a step."""

import json
import time

import steps


def decode(text):
    return json.loads(text)


def evaluate(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for size in range(1, 400):
            text = json.dumps(list(range(size)))
            decode(text)
            sorted(text)


steps.count_to(20)
evaluate(16)

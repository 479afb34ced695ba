"""Numbers as the pages about data, models and machines write them."""

from django import template

register = template.Library()


@register.filter
def thousands(count: float | None) -> str:
    """A number with its thousands set apart; empty where there is none."""
    return "" if count is None else f"{count:,}"

"""Command-line options that are generated from the table of settings, and help that shows them in groups."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from holdfast.core.setting_values import allowed_words
from holdfast.core.settings import GROUPS, SETTINGS, Setting
from holdfast.core.text import option

F = TypeVar("F", bound=Callable[..., Any])
_SHOW_ALL = "holdfast.help_all"
_METAVARS = {"whole": "NUMBER", "number": "NUMBER", "path": "PATH"}
_FLAGS = {"multi_label": "--multi-label/--single-label"}


class GroupedHelp(click.Command):
    """A command whose help shows the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the description is about it
            setting = SETTINGS.get(parameter.name or "")
            if record := self.help_record(parameter, setting, ctx):
                sections.setdefault(setting.affects if setting else "run", []).append(record)
        for group, title in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(sections.get(group, []))

    def help_record(
        self, parameter: click.Parameter, setting: Setting | None, ctx: click.Context
    ) -> tuple[str, str] | None:
        """An option and its text; None for one that the help leaves out."""
        return parameter.get_help_record(ctx)


class ShortHelp(GroupedHelp):
    """Shows the settings that most people need, without aliases and ranges; `--help-all` shows everything."""

    def help_record(
        self, parameter: click.Parameter, setting: Setting | None, ctx: click.Context
    ) -> tuple[str, str] | None:
        """An option and its text; None for a setting that few people need."""
        if setting is None or ctx.meta.get(_SHOW_ALL):
            return super().help_record(parameter, setting, ctx)
        if "basic" not in setting.traits:
            return None
        first = parameter.opts[0] + (f" / {parameter.secondary_opts[0]}" if parameter.secondary_opts else "")
        metavar = "" if parameter.secondary_opts else f" {parameter.make_metavar(ctx)}"
        return first + metavar, setting.help


def show_all(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the help with every option."""
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[_SHOW_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def with_settings(names: Collection[str]) -> Callable[[F], F]:
    """Give a command the options of these settings, in the order of the table."""

    def add(command: F) -> F:
        for setting in reversed([*SETTINGS.values()]):
            if setting.name in names:
                command = setting_option(setting)(command)
        return command

    return add


def setting_option(setting: Setting) -> Callable[[F], F]:
    """The option of one setting, with its help."""
    name, kind = setting.name, setting.kind
    limits = "" if kind == "flag" or setting.allowed else allowed_words(setting)
    default = f"default: {_plain(setting.default)}" if setting.has_default and setting.default is not False else ""
    notes = "; ".join(filter(None, (limits, default)))
    text = setting.help + (f"  [{notes}]" if notes else "")
    if kind == "flag":
        flags = [f"{option(one)}/--no-{one.replace('_', '-')}" for one in (name, *setting.aliases)]
        return click.option(_FLAGS.get(name, flags[0]), *flags[1:], name, default=setting.default, help=text)
    names = dict.fromkeys([option(name), *map(option, setting.aliases)])
    metavar = "|".join(setting.allowed) if setting.allowed else _METAVARS.get(kind, "TEXT")
    return click.option(*names, name, multiple=kind == "texts", default=None, metavar=metavar, help=text)


def is_given(name: str) -> bool:
    """Whether the user wrote it: a default of ours must not hide what a file says."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

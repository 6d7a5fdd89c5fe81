"""`minicl --completion bash`: a script that completes commands, their flags and what flags may be, from the parsers."""

import re
from argparse import ArgumentParser
from collections.abc import Mapping

SHELLS = ("bash", "zsh")  # zsh understands bash's script

SCRIPT = """{head}_minicl() {{
    local command=${{COMP_WORDS[1]}} word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
    if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    if [[ $COMP_CWORD -eq 1 ]]; then
        words="{commands}"
    else
        case "$command $before" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _minicl minicl
"""


def script(shell: str, main: ArgumentParser, commands: Mapping[str, ArgumentParser]) -> str:
    """What the shell is to read. Where it offers nothing, the shell offers files."""
    cases = [case for name, parser in commands.items() for case in _cases(name, parser)]
    return SCRIPT.format(
        head="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        commands=" ".join([*commands, *(flag for action in main._actions for flag in action.option_strings)]),
        cases="\n".join(f"            {case}" for case in cases),
    )


def _cases(name, parser):
    """After a flag that takes a value: what it may be. Anywhere else: all flags, once a dash is there."""
    flags = [action for action in parser._actions if action.option_strings]
    for action in flags:
        if action.nargs != 0:
            patterns = "|".join(f'"{name} {flag}"' for flag in action.option_strings)
            yield f'{patterns}) words="{" ".join(map(str, _choices(action)))}" ;;'
    every = " ".join(flag for action in flags for flag in action.option_strings)
    yield f'"{name} "*) [[ $word == -* ]] && words="{every}" ;;'


def _choices(action):
    """Its choices, or those that its help shows in braces."""
    shown = re.fullmatch(r"\{(.+)\}", action.metavar or "")
    return action.choices or (shown[1].split(",") if shown else ())

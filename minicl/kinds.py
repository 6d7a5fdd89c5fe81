"""Masks that treat all examples alike: every one of them, by name, and what each guarantees.

Whether a token sees another depends only on their kinds (copy, x or y) and on whether they belong to the same example.
Every token sees itself, and y sees x of its own example and copy. The rest is free: 5 choices with one copy, 18 with
two, where copy 0 does not see copy 1. A mask is a set of choices, written as a number with one bit for each.

Its name says for each kind what else it sees: a small letter is a token of its own example, a capital one that of every
other example. `two:x1-X0Y0,y1-X0Y0` is invicl, `one:y-Y` is pfn, `one:` is boe. A mask that changes with depth has two
names: `one:y-Y/3/one:x-XY` is the first in 3 layers and the second in those that follow.
"""

import re
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy

from minicl.checks import check
from minicl.masks import Strategy

WORDS = {"one": 1, "two": 2}
NAME = re.compile(r"(one|two):\S*")


class Choice(NamedTuple):
    """A free choice: tokens of kind `looks` see tokens of kind `seen` of their own example, or of all others."""

    looks: str  # x0, y0, x1 or y1; x and y with one copy
    seen: str
    other: bool

    @property
    def letter(self) -> str:
        return self.seen.upper() if self.other else self.seen


def kinds(copies: int) -> tuple[str, ...]:
    """x0, y0, x1, y1; with one copy x, y."""
    return ("x", "y") if copies == 1 else tuple(f"{letter}{copy}" for copy in range(copies) for letter in "xy")


@lru_cache
def choices(copies: int) -> tuple[Choice, ...]:
    """The free choices; the i-th is bit i of a mask."""
    every = kinds(copies)
    return tuple(
        Choice(looks, seen, other)
        for looks, seen in product(every, every)
        if every.index(seen) // 2 <= every.index(looks) // 2  # copy 0 does not see copy 1
        for other in (False, True)
        if other or not _fixed(looks, seen)
    )


def _fixed(looks, seen):
    """Whether a token sees this one of its own example in any case: itself, and its x."""
    return looks == seen or (looks[0] == "y" and seen[0] == "x" and looks[1:] == seen[1:])


def name_of(mask: int, copies: int) -> str:
    """The name of a mask."""
    made = [choice for bit, choice in enumerate(choices(copies)) if mask >> bit & 1]
    parts = []
    for looks in kinds(copies):
        seen = "".join(choice.letter for choice in made if choice.looks == looks)
        parts += [f"{looks}-{seen}"] if seen else []
    return f"{'one' if copies == 1 else 'two'}:{','.join(parts)}"


def parse(name: str) -> tuple[int, int]:
    """(mask, copies) of a name without a change of depth."""
    word, _, rest = name.partition(":")
    allowed = "names such as one:y-Y or two:x1-X0Y0,y1-X0Y0 (see minicl search --show)"
    check(word in WORDS and NAME.fullmatch(name), "mask", repr(name), allowed)
    copies = WORDS[word]
    bits = {(choice.looks, choice.letter): 1 << bit for bit, choice in enumerate(choices(copies))}
    token = r"[xyXY]" if copies == 1 else r"[xyXY][01]"
    mask = 0
    for part in filter(None, rest.split(",")):
        looks, dash, seen = part.partition("-")
        letters = re.findall(token, seen)
        check(looks in kinds(copies) and dash and "".join(letters) == seen, f"mask {name}", repr(part), allowed)
        for letter in letters:
            known = ", ".join(letter for kind, letter in bits if kind == looks)
            check((looks, letter) in bits, f"mask {name}: what {looks} sees", letter, known)
            check(not mask & bits[looks, letter], f"mask {name}: what {looks} sees", f"{letter} twice", "each once")
            mask |= bits[looks, letter]
    return mask, copies


@lru_cache(maxsize=4096)
def strategy_of(name: str) -> Strategy:
    """The Strategy of a name, with symmetric positions."""
    stages = re.split(r"/(\d+)/", name)
    check(len(stages) in (1, 3), "mask", repr(name), "one name, or two with the number of layers between: NAME/3/NAME")
    parsed = [parse(stage) for stage in stages[::2]]
    copies = parsed[0][1]
    check(parsed[-1][1] == copies, "mask", repr(name), "two masks with the same number of copies")
    predicates = [_predicate(mask, copies) for mask, copies in parsed]
    if len(predicates) == 1:
        return Strategy(name_of(*parsed[0]), predicates[0], copies=copies)
    first = int(stages[1])
    check(first >= 1, f"mask {name}: layers of the first part", first, "at least 1")

    def sees(q, k, layer):
        return predicates[layer > first](q, k)

    sees.__doc__ = f"Layers 1 to {first}: {in_words(*parsed[0])} After that: {in_words(*parsed[1])}"
    return Strategy(f"{name_of(*parsed[0])}/{first}/{name_of(*parsed[1])}", sees, copies=copies)


def _predicate(mask, copies):
    made = [choice for bit, choice in enumerate(choices(copies)) if mask >> bit & 1]

    def of(tokens, kind):
        return (tokens.is_label == (kind[0] == "y")) & (tokens.copy == int(kind[1:] or 0)) & ~tokens.is_query

    def sees(q, k):
        table = (q.copy != q.copy) & (k.copy != k.copy)
        for looks, seen, other in made:
            table = table | of(q, looks) & of(k, seen) & ((k.example != q.example) == other)
        return table

    sees.__doc__ = in_words(mask, copies)
    return sees


def in_words(mask: int, copies: int) -> str:
    """Who sees whom, in a sentence for each kind."""
    made = [choice for bit, choice in enumerate(choices(copies)) if mask >> bit & 1]
    sentences = []
    for looks in kinds(copies):
        own = [c.seen for c in made if c.looks == looks and not c.other]
        others = [c.seen for c in made if c.looks == looks and c.other]
        always = "itself" if looks[0] == "x" else f"itself and x{looks[1:]} of its own example"
        parts = [always]
        parts += [f"{_and(own)} of its own example"] if own else []
        parts += [f"{_and(others)} of every other example"] if others else []
        sentences.append(f"{looks} sees {'; '.join(parts)}.")
    return " ".join(sentences)


def _and(names):
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def source(name: str, called: str) -> str:
    """A mask as a Python file that `--mask` takes, with a function of this name."""
    strategy, stages = strategy_of(name), re.split(r"/(\d+)/", name)
    parts = [_source(*parse(stage)) for stage in stages[::2]]
    layer = ", layer" if len(parts) == 2 else ""
    words = strategy.sees.__doc__.replace(". ", ".\n    ")
    rest = f" if layer <= {stages[1]} else {parts[1]}" if layer else ""
    return f'''"""{strategy.name}"""

from minicl import strategy


def kind(tokens, copy, is_label):
    return (tokens.copy == copy) & (tokens.is_label == is_label) & ~tokens.is_query


@strategy(copies={strategy.copies})
def {called}(q, k{layer}):
    """{words}"""
    own, other = k.example == q.example, k.example != q.example
    nobody = own & other
    return {parts[0]}{rest}
'''


def _source(mask, copies):
    """The expression of a mask: one line for each choice that it makes."""

    def kind(tokens, name):
        return f"kind({tokens}, {name[1:] or 0}, {name[0] == 'y'})"

    made = [choice for bit, choice in enumerate(choices(copies)) if mask >> bit & 1]
    terms = [f"{kind('q', c.looks)} & {kind('k', c.seen)} & {'other' if c.other else 'own'}" for c in made]
    return "\n        ".join(["(", "nobody", *(f"| {term}" for term in terms)]) + "\n    )"


class Certificates(NamedTuple):
    """What each mask of the class guarantees, one entry for each mask 0, 1, …; all of them are invariant."""

    no_leak: numpy.ndarray
    informed: numpy.ndarray  # context predictions depend on other examples' labels
    interdependent: numpy.ndarray  # and on each other example
    paired: numpy.ndarray


def _bits(masks, copies):
    """{(looks, seen, other): who does}, the fixed choices included, as arrays over the masks."""
    every, table = kinds(copies), {}
    for looks, seen, other in product(every, every, (False, True)):
        table[looks, seen, other] = numpy.full(len(masks), not other and _fixed(looks, seen))
    for bit, choice in enumerate(choices(copies)):
        table[tuple(choice)] = (masks >> bit & 1).astype(bool)
    return table


def _reach(sees, every):
    """Who can have heard of whom, through enough layers, among at least three examples."""
    heard = {key: value.copy() for key, value in sees.items()}
    for _ in range(3):  # paths of up to 8 steps: there are no longer ones without a loop
        step = {key: value.copy() for key, value in heard.items()}
        for a, b, c in product(every, repeat=3):
            same, other = (heard[a, b, False], heard[b, c, False]), (heard[a, b, True], heard[b, c, True])
            step[a, c, False] |= (same[0] & same[1]) | (other[0] & other[1])
            step[a, c, True] |= (same[0] & other[1]) | (other[0] & same[1]) | (other[0] & other[1])
        heard = step
    return heard


def certify(masks: numpy.ndarray, copies: int) -> Certificates:
    """The certificates of these masks, by reasoning on kinds instead of tokens."""
    return Certificates(*context_hears(masks, copies), _paired(_bits(masks, copies), kinds(copies)))


@lru_cache
def certify_all(copies: int) -> Certificates:
    """The certificates of every mask of the class."""
    return certify(numpy.arange(1 << len(choices(copies))), copies)


def context_hears(masks: numpy.ndarray, copies: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Of whom context predictions hear: not their own label (no leak), other labels (informed), other examples."""
    every = kinds(copies)
    heard = _reach(_bits(masks, copies), every)
    x = every[-2]  # where context predictions are read
    labels, inputs = every[1::2], every[::2]
    leak = numpy.logical_or.reduce([heard[x, y, False] for y in labels])
    informed = numpy.logical_or.reduce([heard[x, y, True] for y in labels])
    return ~leak, informed, informed | numpy.logical_or.reduce([heard[x, other, True] for other in inputs])


PRIME = (1 << 31) - 1


def _paired(sees, every, n=3, layers=8):
    """Whether the query can tell that two labels were exchanged, by refining colours as in graph.py.

    A colour is a number below a prime. What a token sees is the mean of the colours' random values in that field: equal
    if and only if the proportions are, but for a chance of one in two billion.
    """
    count = len(next(iter(sees.values())))
    tokens = [(kind, example) for kind in every for example in range(n)]
    last = every[-2:]

    def random(colours, salt):
        z = (colours.astype(numpy.uint64) + numpy.uint64(salt)) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> numpy.uint64(31))) % numpy.uint64(PRIME)).astype(numpy.int64)

    inverse = numpy.array([pow(i, -1, PRIME) if i else 0 for i in range(len(tokens) + 2)], dtype=numpy.int64)

    def refine(colours, query):
        value = {t: random(c, 1) for t, c in colours.items()}
        new = {}
        for kind, example in tokens:
            total, number = numpy.zeros(count, numpy.int64), numpy.zeros(count, numpy.int64)
            for (seen, of), v in value.items():
                visible = sees[kind, seen, of != example]
                total, number = total + v * visible, number + visible
            mean = total % PRIME * inverse[number] % PRIME
            new[kind, example] = random(random(colours[kind, example], 2) + mean, 3)
        total = random(query, 1) + sum(value[kind, example] for kind in last for example in range(n))
        mean = total % PRIME * inverse[2 * n + 1] % PRIME
        return new, random(random(query, 2) + mean, 3)

    sides = []
    for exchanged in (False, True):
        order = [1, 0, *range(2, n)] if exchanged else range(n)
        start = {(k, i): 10 + i if k[0] == "x" else 20 + order[i] for k, i in tokens}  # both copies look the same
        colours = {t: numpy.full(count, c, numpy.int64) for t, c in start.items()}
        query = numpy.full(count, 30, numpy.int64)
        for _ in range(layers):
            colours, query = refine(colours, query)
        sides.append(query)
    return sides[0] != sides[1]


def reduced(masks: numpy.ndarray, copies: int) -> numpy.ndarray:
    """The masks without the choices of kinds that no prediction hears of: equal where they are the same function."""
    if copies == 1:
        return masks  # the query sees both kinds
    every = kinds(copies)
    heard = _reach(_bits(masks, copies), every)
    out = masks.copy()
    for kind in every[:2]:
        unheard = ~numpy.logical_or.reduce([heard[last, kind, other] for last in every[2:] for other in (False, True)])
        rows = sum(1 << bit for bit, choice in enumerate(choices(copies)) if choice.looks == kind)
        out = numpy.where(unheard, out & ~rows, out)
    return out


def maximal(no_leak: numpy.ndarray, copies: int) -> numpy.ndarray:
    """The leak-free masks to which no choice can be added without a leak; `no_leak` is for all masks of the class."""
    masks = numpy.arange(len(no_leak))
    stays = no_leak.copy()
    for bit in range(len(choices(copies))):
        stays &= (masks >> bit & 1 == 1) | ~no_leak[masks | 1 << bit]
    return masks[stays]


INVICL = "two:x1-X0Y0,y1-X0Y0"
BUILT_IN = {"one:": "boe", "one:y-Y": "pfn", "one:x-XyY,y-XY": "prefix", "one:x-XY,y-XY": "prefix_others"}
BUILT_IN |= {INVICL: "invicl"}


def count(copies: int) -> dict:
    """Every mask of the class: how many there are of each sort, and which leak-free ones are maximal."""
    masks = numpy.arange(1 << len(choices(copies)))
    certified = certify_all(copies)
    largest = maximal(certified.no_leak, copies)
    useful = certified.no_leak & certified.informed
    record = {
        "copies": copies,
        "masks": len(masks),
        "leak_free": int(certified.no_leak.sum()),
        "informed": int(useful.sum()),
        "paired": int(certified.paired.sum()),
        "leak_free_informed_paired": int((useful & certified.paired).sum()),
        "functions": len(numpy.unique(reduced(masks, copies))),
        "informed_functions": len(numpy.unique(reduced(masks[useful], copies))),
        "maximal": [name_of(int(mask), copies) for mask in largest],
    }
    if copies == 2:
        invicl = parse(INVICL)[0]
        containing = certified.no_leak & (masks & invicl == invicl)
        record["contain_invicl"] = int(containing.sum())
        record["containing_invicl"] = [name_of(int(mask), 2) for mask in masks[containing]]
    return record

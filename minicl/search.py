"""`minicl search`: every mask that treats all examples alike, counted, certified and described."""

import json
from typing import Any

from minicl import kinds
from minicl.auditing import audit
from minicl.checks import check
from minicl.text import columns

PROPERTIES = ("invariant", "no_leak", "interdependent", "paired")


def add_arguments(parser):
    parser.add_argument("--count", action="store_true", help="how many masks there are of each sort")
    parser.add_argument("--copies", type=int, choices=(1, 2), help="--count: only masks with so many copies (both)")
    parser.add_argument("--show", metavar="NAME", help="who sees whom under a mask, and what it guarantees")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")


def run(args):
    check(args.count != (args.show is not None), "search", "neither or both", "one of --count and --show NAME")
    check(args.count or args.copies is None, "copies", args.copies, "with --count")
    if args.show is not None:
        record = show(args.show)
        print(json.dumps(record) if args.json else _described(record))
        return 0
    records = [kinds.count(copies) for copies in ((1, 2) if args.copies is None else (args.copies,))]
    if args.json:
        print(json.dumps(records if args.copies is None else records[0]))
    else:
        print("\n\n".join(map(_counted, records)))
    return 0


def show(name: str) -> dict[str, Any]:
    """A mask's name, what it says in words, and its certificates at 4 examples and 12 layers."""
    strategy = kinds.strategy_of(name)
    certified = audit(strategy)
    return {
        "mask": strategy.name,
        "copies": strategy.copies,
        "words": strategy.sees.__doc__,
        **{name: certified[name] for name in (*PROPERTIES, "pairs", "counterexamples")},
    }


def _described(record):
    lines = [record["mask"], *(f"  {sentence}." for sentence in record["words"].rstrip(".").split(". "))]
    lines += [f"  {name.replace('_', ' ')}: {'yes' if record[name] else 'no'}" for name in PROPERTIES]
    return "\n".join([*lines, *(f"  {why}" for why in record["counterexamples"].values())])


def _counted(record):
    words = {
        "masks": "masks",
        "leak_free": "without a leak",
        "informed": "of these, context predictions hear other labels",
        "paired": "masks under which labels are paired with their x",
        "leak_free_informed_paired": "without a leak, informed and paired",
        "functions": "different functions",
        "informed_functions": "of these, without a leak and informed",
        "contain_invicl": "without a leak, and see all that invicl sees",
    }
    rows = [[f"{record[key]:,}", text] for key, text in words.items() if key in record]
    copies = "one copy" if record["copies"] == 1 else "two copies, of which the first does not see the second"
    largest = [f"  {name}" for name in record["maximal"]]
    return "\n".join([f"{copies}; all masks are invariant", *columns(rows),
                      "maximal: nothing can be added without a leak", *largest])  # fmt: skip

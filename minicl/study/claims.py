"""The claims: what the paper says about its synthetic figures, and what minicl found, each with its rule and verdict.

A claim holds if all of its parts do, does not hold if one part does not, and is not decided where seeds or intervals
disagree. It is not tested where the set-up could not decide it, whatever came out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from minicl.stats import percent
from minicl.study import rules
from minicl.study.evidence import Evidence, Missing, Thresholds, Untested
from minicl.study.figures import figures, make_runs
from minicl.study.numbers import Shelf
from minicl.study.rules import WORDS, Judge, Part, overall

USUAL = Thresholds()


@dataclass(frozen=True)
class Claim:
    sentence: str
    place: str  # in the paper, or "minicl"
    figure: int
    rule: str
    judge: Judge
    changed: str = ""  # what was changed in the rule, when and why


@dataclass(frozen=True)
class Verdict:
    """A verdict in words, with its parts; and what it would be with thresholds halved and doubled."""

    words: str
    parts: tuple[Part, ...] = ()
    why: str = ""
    halved: str = ""
    doubled: str = ""


SEEDS = f"by Student's {percent()} interval over seeds"
LOWER = (
    f"both {percent()} intervals of the ratio say so: the paired one over prompts, and Student's over seeds "
    "(of the logarithms)"
)
OBJECTIVE = "the paper's objective (curriculum, one query, loss on all positions, constant rate)"
INTERVALS = (
    "Until 2026-11-18 all seeds had to agree; now there is an interval over seeds. Three seeds of an older recipe had "
    "been seen."
)
STUDENT = (
    "Until 2026-11-19 all seeds had to agree; now the interval over seeds decides, as in the other rules. Two seeds of "
    "most runs had been seen by then."
)
LEVEL = "by both intervals: over prompts, and Student's over seeds"
PAPER = (
    Claim(
        "Early in training, only InvICL performs well.",
        "Synthetic Scenario, first bullet",
        16,
        f"Of runs with {OBJECTIVE}, a quarter of the way, at the training length: InvICL's error is at most "
        f"{USUAL.good}, every other mask's above it, {LEVEL}.",
        rules.only_invicl_is_good_early,
        "Until 2026-11-18 it was judged on the study's recipe, whose rate decays to 0; the paper's rate is constant. "
        f"Three seeds had been seen, under which it did not hold. {STUDENT} Since 2026-11-20 the runs of the study's "
        "recipe stand there too, as parts without a verdict.",
    ),
    Claim(
        "Later in training, the other models perform well too.",
        "Synthetic Scenario, first bullet",
        1,
        f"At the end, at the training length: each error is at most {USUAL.good}, {LEVEL}. The paper's Prefix has "
        "symmetric positions. Absolute ones, with which it could tell whose label is whose, are allowed too: one is "
        "enough.",
        rules.others_are_good_late,
        "Until 2026-11-18 the rule excepted BoE; the sentence does not. Three seeds had been seen, of which BoE was "
        "not good. Until 2026-11-19 Prefix had symmetric "
        f"positions only, and its error with them had been seen. {STUDENT}",
    ),
    Claim(
        "Beyond the training length, InvICL > AR > Prefix ≈ NoPE > BoE.",
        "Synthetic Scenario, second bullet",
        1,
        "In the sentence > means that an error is lower. At 2.5 times the training length it is, if "
        f"{LOWER}; two are about the same if the ratio is "
        f"within a factor of {USUAL.close:g}, by both. Prefix may have symmetric or absolute positions, as in claim 2.",
        rules.order_beyond_the_training_length,
        f"{INTERVALS} Until 2026-11-19 Prefix had symmetric positions only; three seeds had been seen.",
    ),
    Claim(
        "On sparse linear prompts, InvICL converges and AR does not.",
        "Other function settings, 1",
        2,
        f"At the training length, at the end of training: InvICL's error is at most {USUAL.good}, AR's above it, "
        f"{LEVEL}.",
        rules.invicl_converges_on_sparse_prompts,
        f"{INTERVALS} Until 2026-11-19 it was also judged a quarter of the way (where it held); the paper speaks of "
        "the end of training only. Until 2026-11-20 InvICL's error only had to be lower than AR's, by however little: "
        "that stands there without a verdict now. Three seeds had been seen: it was not decided, and both had "
        "converged.",
    ),
    Claim(
        "On decision trees, AR is better for short inputs; as they grow, InvICL gradually outperforms it.",
        "Other function settings, 2",
        2,
        f"AR's error is lower at a quarter of the training length, and InvICL's at 2.5 times it ({LOWER}); and from a "
        "quarter on InvICL ÷ AR falls with the number of examples: its rank correlation with that number is below "
        f"−{USUAL.alike}, {SEEDS}. Not tested if AR has not learned trees: its error at the training length is more "
        "than half of that without examples.",
        rules.trees_ar_short_invicl_long,
        "Until 2026-11-18 short meant half of the training length, and trees counted that were hardly learned. Until "
        "2026-11-19 all seeds had to agree, and InvICL had to have learned them too: that it has not would be an "
        "answer. A pilot of AR at this size had been seen, and no other run.",
    ),
    Claim(
        "Under each of three shifts, early and late, InvICL keeps its advantages over AR.",
        "Out-of-distribution Setups",
        3,
        f"At the training length and at 2.5 times it: InvICL's error is lower ({LOWER}). The advantages are those of "
        "the first two claims and of the third: late in training and within the training length the paper grants that "
        "others perform well too, so these three parts stand there without a verdict; claim 13 counts them.",
        rules.invicl_keeps_its_advantages_under_shifts,
        f"{INTERVALS} Until 2026-11-19 InvICL could be {USUAL.slack} times worse, and all twelve parts counted, though "
        "three are no advantage that the paper claims. Two seeds had been seen, in which one of these three failed.",
    ),
    Claim(
        "With 2.5 times the training length, InvICL's error falls early and stabilises; AR's falls late and increases.",
        "Detailed Results, last two sentences",
        16,
        f"Of runs with {OBJECTIVE}: a quarter of the way InvICL's error is at most 1/{USUAL.far:g} of that of "
        f"answering 0, and AR's is not, {LEVEL}; at the end InvICL's is within {USUAL.stays} of its least at a "
        f"checkpoint, and AR's is not, {SEEDS}.",
        rules.invicl_falls_early_and_stays,
        "Until 2026-11-18 it was judged on runs whose rate decays to 0, under which no error rises at the end; three "
        "seeds had been seen, under which it did not hold. Until "
        f"2026-11-19 early meant within a factor of {USUAL.close:g} of its least error, so that learning on counted "
        "against InvICL; the paper says that its error decreases rapidly. Two seeds had been seen.",
    ),
    Claim(
        "Beyond the training length, InvICL outperforms AR at all times of training.",
        "Detailed Results, third sentence",
        5,
        f"At 2.5 times the training length, at every kept checkpoint ({LOWER}).",
        rules.invicl_is_ahead_at_all_times,
        "Added on 2026-11-18: the paper says it beside the claim before.",
    ),
    Claim(
        "InvICL's probes are close to the model at all four layers; of AR's, only the last is.",
        "Linear Probing experiments",
        6,
        f"At the training length the error of a linear probe of the normalised state is at most {USUAL.close:g} times "
        "the model's own after all four of InvICL's layers and after AR's last, and more than that after AR's others, "
        f"{SEEDS}. Both are measured on the prompts that test the probes: the model's error is not that of figure 1.",
        rules.invicl_knows_in_the_middle,
        "Until 2026-11-18 states were probed before the norm that the model itself reads them through; three seeds of "
        f"an older recipe had been seen. {STUDENT}",
    ),
    Claim(
        "The order of the examples has no effect only if both mask and positions are symmetric.",
        "Permutation Invariance",
        7,
        f"The spread over orders is below {USUAL.same:g} of y's scale for InvICL, and above it for AR, AR with "
        f"symmetric positions, and InvICL's mask with absolute ones, {SEEDS} (of the logarithms).",
        rules.order_matters_unless_both,
        STUDENT,
    ),
    Claim(
        "InvICL still outperforms AR, BoE and Prefix if their inputs are doubled too.",
        "Ablation Study; Ablation study for InvICL",
        7,
        f"At 2.5 times the training length InvICL's error is lower than that of AR, BoE and Prefix with doubled inputs "
        f"({LOWER}); AR also without positions (NoPE), which do not fail it there. "
        "Their context predictions are read at copy 0, where they do not leak. Prefix with doubled inputs "
        "is the same function as Prefix, which stands for it.",
        rules.invicl_beats_doubled_inputs,
        "This is the first rule again. A later one also asked that InvICL trained on queries alone be better, and so "
        "turned the verdict over after a result was seen; that control is claim C now. From 2026-11-19 to 2026-11-20 a "
        "part had no verdict where InvICL was not shown to be better than the same mask without doubled inputs, so "
        "that the one of BoE did not count and the claim held. The paper's sentence is about doubled inputs only. Two "
        "seeds had been seen.",
    ),
    Claim(
        "InvICL has roughly the same inference speed as other models.",
        "Computational Cost",
        9,
        f"Time of a forward pass on a GPU, turns taken: the middle half of the ratios to AR, Prefix and BoE, which the "
        f"paper timed, is within a factor of {USUAL.close:g}, or beyond it. Not tested on a CPU: there time follows "
        "the arithmetic, where a GPU may wait for other things.",
        rules.invicl_costs_the_same,
        "Until 2026-11-18 the rule was 2.2 times AR's, which the paper does not say; until 2026-11-19 NoPE, which the "
        "paper did not time, had a part too. Until 2026-11-20 times on one thread of a CPU counted, and it did not "
        "hold.",
    ),
    Claim(
        "Under each of three shifts InvICL consistently outperforms AR.",
        "Synthetic Scenario, last paragraph",
        3,
        f"The parts of claim 6, all twelve: early and late, at the training length and at 2.5 times it ({LOWER}).",
        rules.invicl_is_always_better_under_shifts,
        "Added on 2026-11-20: until 2026-11-19 it was the rule of claim 6. All five seeds had been seen.",
    ),
)
OWN = (
    Claim(
        "pfn is at least as good as InvICL, at less cost.",
        "minicl",
        12,
        f"On linear and noisy linear prompts, at the training length and at 2.5 times it: pfn's error is below "
        f"{USUAL.slack} times InvICL's ({LOWER}); so too on linear prompts if both are trained with 4 queries in each "
        "prompt, and if both are with 16; and the middle half of the ratios of forward passes, on one CPU thread, is "
        "above 1.",
        rules.pfn_is_as_good_for_less,
        "Equal numbers of queries were added on 2026-11-19, before those runs: pfn has 16 in the study's recipe, and "
        "InvICL 4.",
    ),
    Claim(
        "Positions, not masks, decide extrapolation.",
        "minicl",
        15,
        f"At 2.5 times the training length: under one mask, other positions than absolute ones make the error "
        f"{USUAL.far:g} times lower, for AR's mask (none, random or rotary ones: one is enough) and for InvICL's; and "
        "with positions that extrapolate, the worst of "
        f"NoPE, BoE, pfn and InvICL is within a factor of {USUAL.far:g} of the best ({LOWER}).",
        rules.positions_decide,
        "Until 2026-11-19 the best of AR's three others stood for them, chosen by the numbers that it was then "
        "compared by, and the part was not decided; two seeds of these controls had been seen.",
    ),
    Claim(
        "What InvICL gains from is the loss on every example, not the mask.",
        "minicl",
        7,
        f"With 16 queries in each prompt: trained on queries alone, InvICL's error is more than {USUAL.close:g} times "
        f"higher than trained on its examples too, and pfn, trained on queries, is below {USUAL.slack} times that, at "
        f"the training length and at 2.5 times it ({LOWER}).",
        rules.the_dense_loss_is_what_helps,
        "Until 2026-11-20 the InvICL that was trained on its examples too had 4 queries, so that the two differed in "
        "more than the loss. Both controls had been seen: the change is to a larger ratio.",
    ),
    Claim(
        "Order sensitivity does not predict the error.",
        "minicl; Permutation Invariance says the opposite",
        12,
        f"Over fifteen strategies and positions on linear prompts, the rank correlation of spread over orders and "
        f"error is below {USUAL.alike} in size, at the training length and at 2.5 times it, {SEEDS}.",
        rules.order_does_not_predict_error,
        "Until 2026-11-19 it was over all that were there, so that each new run changed the question, and all seeds "
        "had to agree; two seeds had been seen.",
    ),
    Claim(
        "On noiseless prompts a window of the last examples is enough; on noisy ones it is not.",
        "minicl",
        13,
        f"At 2.5 times the training length: AR on only the last examples, as many as it was trained on, has at most "
        f"{USUAL.close:g} times the error of each of NoPE, BoE, pfn and InvICL on linear prompts, "
        f"and above each on noisy ones ({LOWER}).",
        rules.a_window_is_enough,
        "Until 2026-11-19 the best of the four stood for all, chosen by the numbers that it was then compared by; two "
        "seeds had been seen.",
    ),
)
CLAIMS = {**{str(i): claim for i, claim in enumerate(PAPER, 1)}, **dict(zip("ABCDE", OWN, strict=True))}


def judge(claim: Claim, numbers: Evidence) -> Verdict:
    """With the usual thresholds, and with both others."""
    if not numbers.shelf.scale.judged:
        return Verdict("not judged", why="the models of this scale are toys")
    try:
        parts = tuple(claim.judge(numbers, USUAL))
        halved, doubled = (WORDS[overall(claim.judge(numbers, USUAL.scaled(by)))] for by in (0.5, 2))
    except Missing as missing:
        return Verdict("not run", why=f"missing: {missing}")
    except Untested as untested:
        return Verdict("not tested here", why=str(untested))
    return Verdict(WORDS[overall(parts)], parts, "", halved, doubled)


def verdicts(numbers: Evidence) -> Iterator[tuple[str, Claim, Verdict]]:
    return ((number, claim, judge(claim, numbers)) for number, claim in CLAIMS.items())


def of_shelf(shelf: Shelf) -> str:
    """claims.md of all numbers on a shelf; beside the verdicts of another scale, if its numbers lie beside them."""

    def evidence(shelf):
        return Evidence(shelf, make_runs(shelf.scale, figures(shelf.scale), seeds=shelf.seeds))

    other = shelf.scale.beside
    beside = Shelf(shelf.out.absolute().parent / other, shelf.folder, other) if other else shelf
    there = other and beside.store.folder.is_dir()
    return report(evidence(shelf), (other, evidence(beside)) if there else None)


def report(numbers: Evidence, beside: tuple[str, Evidence] | None = None) -> str:
    """claims.md, with the verdicts at another scale (name, numbers) beside them."""
    judged = list(verdicts(numbers))
    others = {} if beside is None else {number: verdict for number, _, verdict in verdicts(beside[1])}
    head = ["", "claim", "figure", "verdict", "parts"]
    rows = [[n, c.sentence, str(c.figure), v.words, _count(v.parts)] for n, c, v in judged]
    if beside is not None:
        head += [f"at scale {beside[0]}", "agree"]
        rows = [[*row, others[n].words, _agreement(v, others[n])] for row, (n, _, v) in zip(rows, judged, strict=True)]
    rows = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    rows[0] = rows[0].replace("|  |", "| |", 1)
    lines = [
        "# Verdicts\n\nWritten by `minicl study` from the numbers beside it. Numbered claims are the paper's, lettered "
        "ones minicl's own.\n\n"
        "- An error of 1 is that of answering 0. Each is a mean over seeds, with the range. The range of three seeds "
        "is not an interval: a fourth lies outside of it half of the time.\n"
        f"- A ratio is a geometric mean over the seeds that both have, with two {percent()} intervals: paired over "
        "prompts, and Student's over seeds.\n"
        "- Rules were committed before the first runs that they judge. Most were changed later, some after results had "
        "been seen: each says when, why, and what had been seen by then.\n"
        "- *Halved* and *doubled* is what the verdict would be with such thresholds (of a factor: its square root and "
        "its square). Claims 6, 8, 11 and 13 have no threshold.\n",
        *rows,
        *([] if beside is None else [_both(beside[0], [(v, others[n]) for n, _, v in judged])]),
    ]
    for number, claim, verdict in judged:
        lines.append(f"\n## {number}. {claim.sentence}\n")
        others = f" (halved: {verdict.halved}; doubled: {verdict.doubled})" if verdict.parts else f": {verdict.why}"
        figure = f"figure {claim.figure}"
        if (numbers.shelf.out / f"figure{claim.figure}.png").exists():
            figure = f"[{figure}](figure{claim.figure}.png)"
        lines.append(f"**{verdict.words}**{others} · {figure} · {claim.place}\n")
        lines.append(f"*Rule.* {claim.rule}\n")
        if claim.changed:
            lines.append(f"<details><summary>Changes of the rule</summary>\n\n{claim.changed}\n\n</details>\n")
        lines += [f"- {part.text}: **{part.words}**. {part.numbers}" for part in verdict.parts]
    return "\n".join(lines) + "\n"


DECIDED = (WORDS[True], WORDS[False])


def _agreement(here, there):
    """Whether two verdicts on a claim are the same, if both are decided."""
    return ("yes" if here.words == there.words else "no") if {here.words, there.words} <= set(DECIDED) else ""


def _both(other, pairs):
    """In words, how far the verdicts of two scales agree: on claims, and on those parts that both scales have."""
    claims = [here.words == there.words for here, there in pairs if _agreement(here, there)]
    parts = []
    for here, there in pairs:
        said = {part.text: part.words for part in there.parts}
        both = [(part.words, said.get(part.text)) for part in here.parts]
        parts += [a == b for a, b in both if {a, b} <= set(DECIDED)]
    return (
        f"\nDo the scales agree? Of {len(claims)} claims that both this scale and scale {other} decide, "
        f"{sum(claims)} have the same verdict; of {len(parts)} parts of claims, {sum(parts)}."
    )


def _count(parts):
    """3 of 6 hold, 1 not decided."""
    words = [part.words for part in parts if part.tested]
    if len(words) < 2:
        return ""
    undecided = words.count(WORDS[None])
    text = f"{words.count(WORDS[True])} of {len(words)} hold"
    return f"{text}, {undecided} not decided" if undecided else text

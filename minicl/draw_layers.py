"""Pictures of what happens from layer to layer: probes, and comparisons with optimisers. They read numbers only."""

from pathlib import Path

from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from minicl.draw import ERROR, RED, Records, look, mark_training_length, panels


def probes(records: Records) -> Figure:
    """Probe error against examples: one panel per checkpoint, one line per layer, with the model and the controls."""
    runs = list(dict.fromkeys((r["run"], r["step"]) for r in records))
    shades = ["#C6DBEF", "#6BAED6", "#2171B5", "#08306B"]
    figure, grid = panels(len(runs), 4.8, 4, margin=(0.4, 0.4), sharey=True)
    for axes, (run, step) in zip(grid, runs, strict=True):
        mine = [r for r in records if (r["run"], r["step"]) == (run, step)]
        layers = sorted({r["layer"] for r in mine if r["layer"] is not None})

        def line(kind, layer, axes=axes, mine=mine, **style):
            points = sorted((r for r in mine if (r["probe"], r["layer"]) == (kind, layer)), key=lambda r: r["examples"])
            axes.plot([r["examples"] for r in points], [r["mean"] for r in points], **style)

        for i, layer in enumerate(layers):
            shade = shades[round(i * (len(shades) - 1) / max(1, len(layers) - 1))]
            line("target", layer, color=shade, marker="os^D"[i % 4], markersize=3.5, label=f"layer {layer}")
        line("model", None, color=RED, linewidth=1.2, linestyle="--", label="the model")
        line("untrained", layers[-1], color="#CCCCCC", linewidth=4, label=f"untrained, layer {layers[-1]}")
        line(
            "shuffled", layers[-1], color="#444444", linewidth=1, linestyle="-.", label=f"shuffled, layer {layers[-1]}"
        )
        mark_training_length(axes, mine[0]["trained_on"], label="trained to")
        axes.set(yscale="log", xlabel="examples in the prompt", ylabel=ERROR)
        when = f", step {step}" if [other for other, _ in runs].count(run) > 1 else ""
        axes.set_title(f"{mine[0]['method']} ({Path(run).name}{when})", fontsize=10)
    lines, names = grid[0].get_legend_handles_labels()
    figure.legend(
        lines, names, loc="outside lower center", ncols=min(4 * len(runs), len(names)), fontsize=8, frameon=False
    )
    figure.suptitle("on the prompts that test the probes; at each length a probe of its own is fitted", fontsize=9)
    return figure


def theory(records: Records) -> Figure:
    """Distance to the true weights against layer: one panel per step size, one line per mask."""
    rates = list(dict.fromkeys(r["rate"] for r in records))
    methods = {r["mask"] for r in records}
    lowest = min(v for r in records for v in r["distance"])
    figure, grid = panels(len(rates), 3.4, 3.6, margin=(0.6, 0), sharey=True)
    for axes, rate in zip(grid, rates, strict=True):
        for r in (r for r in records if r["rate"] == rate):
            if r["mask"] == "nope":  # the construction has no positions: it is ar
                continue
            proof = r["mask"] == "invicl (proof)"
            colour, marker = look("invicl" if proof else r["mask"], methods)
            name = "ar, nope" if r["mask"] == "ar" and "nope" in methods else r["mask"]
            name = "invicl, as the paper's proof" if proof else name
            points = {"marker": marker, "markersize": 3.5, "fillstyle": "none" if proof else "full"}
            axes.plot(r["layers"], r["distance"], "--" if proof else "-", color=colour, label=name, **points)
            if not proof and r["optimiser"] and max(r["from_optimiser"]) > 1e-9:
                axes.plot(r["layers"], r["optimiser_distance"], ":", color=colour, label=f"{name}, as the paper states")
        axes.set(yscale="log", xlabel="layer", ylim=(lowest / 1.3, 3))
        axes.set_title(rf"$\eta = {rate:g}/\lambda_{{\max}}$", fontsize=10)
    grid[0].set_ylabel("|w − w*| ÷ |w*|, w* the true weights")
    grid[0].legend(fontsize=8, frameon=False, loc="lower left")
    return figure


def resemblance(records: Records) -> Figure:
    """How far a layer's probed prediction is from that of an optimiser: layers against numbers of steps."""
    kinds = {"descent": "gradient descent (best step size)", "newton": "Newton's iteration"}
    lowest = min(v for r in records for kind in kinds for v in r[kind])
    norm = LogNorm(max(lowest, 1e-4), 1)
    figure, grid = panels(2, 4.7, 3.9, margin=(0, 0), sharey=True)
    for axes, (kind, title) in zip(grid, kinds.items(), strict=True):
        image = axes.imshow([r[kind] for r in records], cmap="viridis_r", norm=norm, origin="lower", aspect="auto")
        for r in records:
            k = min(range(len(r[kind])), key=r[kind].__getitem__)
            axes.plot(k, r["layer"], "o", color="white", markeredgecolor="black", markersize=5)
        axes.set_xlabel("steps k")
        axes.set_yticks([r["layer"] for r in records])
        axes.set_title(title, fontsize=10)
        axes.spines[:].set_visible(True)
    grid[0].set_ylabel("layer")
    figure.colorbar(image, ax=grid, label="squared distance ÷ scale of y; ○ nearest k")
    return figure

"""The results as one picture: a panel of bars for each scenario."""

from pathlib import Path
from typing import Any

BASE_COLOUR, PEER_COLOUR = "#1b7f5c", "#b8bec6"


def plot(documents: list[dict[str, Any]], path: Path) -> None:
    """Draws the first column of every scenario that has figures. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [document for document in documents if any(router["medians"] for router in document["routers"].values())]
    if not shown:
        return
    figure, axes = pyplot.subplots(len(shown), 1, figsize=(8, 2.0 * len(shown) + 0.4), squeeze=False)
    for axis, document in zip(axes[:, 0], shown, strict=True):
        _panel(axis, document)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(axis: Any, document: dict[str, Any]) -> None:
    column = document["columns"][0]
    routers = {
        name: router["medians"][column["value"]] for name, router in document["routers"].items() if router["medians"]
    }
    values = {name: value for name, value in routers.items() if value is not None}
    names = sorted(values, key=lambda name: values[name], reverse=not document["higher_is_better"])
    colours = [BASE_COLOUR if name == document["base"] else PEER_COLOUR for name in names]
    bars = axis.barh(names, [values[name] for name in names], color=colours, height=0.7)
    axis.bar_label(bars, labels=[" " + column["form"].format(values[name]) for name in names], fontsize=8)
    better = "more" if document["higher_is_better"] else "less"
    axis.set_title(f"{document['title']} ({column['heading']}; {better} is better)", fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.margins(x=0.14)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)

"""The results as a Markdown page, the same for a terminal."""

from typing import Any

COMMAND = "make bench"


def page(documents: list[dict[str, Any]]) -> str:
    """All scenarios as one Markdown page."""
    lines = [
        "# Measured results",
        "",
        f"Made by `{COMMAND}`; do not edit. Medians of alternating runs on one machine.",
        "",
    ]
    if documents:
        about = documents[0]["about"]
        lines += [f"- {name}: {value}" for name, value in about.items()]
        lines += ["", "![The same figures as a plot](results.png)", ""]
    for document in documents:
        lines += section(document)
    return "\n".join(lines)


def section(document: dict[str, Any]) -> list[str]:
    """One scenario: heading, what was done, the table, and what to know of single figures."""
    base = document["base"]
    headings = ["router", "version", *(column["heading"] for column in document["columns"]), f"{base} / router"]
    lines = [f"## {document['title']}", "", f"{document['how'][:1].upper()}{document['how'][1:]}.", ""]
    lines += ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    remarks = []
    for name, router in document["routers"].items():
        lines.append("| " + " | ".join([name, router["version"], *_cells(document, router)]) + " |")
        remark = _remark(router)
        if remark:
            remarks.append(f"- {name}: {remark}")
    return [*lines, "", *remarks, *([""] if remarks else [])]


def _cells(document: dict[str, Any], router: dict[str, Any]) -> list[str]:
    if not router["medians"]:
        word = "absent" if router["absent"] else "void"
        return [word, *[""] * len(document["columns"])]
    values = [router["medians"][column["value"]] for column in document["columns"]]
    cells = [
        "none" if v is None else column["form"].format(v) for v, column in zip(values, document["columns"], strict=True)
    ]
    ratio = router["ratio_of_base"]
    return [*cells, f"{ratio:.2f}" if ratio else ""]


def _remark(router: dict[str, Any]) -> str | None:
    if router["absent"]:
        return f"absent: {router['absent']}"
    if router["void"]:
        return f"void: {router['void']}"
    note: str | None = router["note"]
    return note

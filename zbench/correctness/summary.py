"""Findings as a short table and a last line that says whether all is well."""

from collections.abc import Sequence

from rich.table import Table

from zbench.console.console import show
from zbench.correctness.ledger import Finding


def print_summary(found: Sequence[Finding], device: str) -> int:
    """Prints the findings and returns the exit code. Findings have `group`, `ok` (None: skipped), `limit` and `worst`
    or `off`."""
    table = Table(title=f"correctness on {device}")
    for title in ("what", "cases", "within", "skipped", "worst error", "largest element", "loss against CPU", "limit"):
        table.add_column(title, justify="left" if title == "what" else "right")
    for group in dict.fromkeys(one["group"] for one in found):
        some = [one for one in found if one["group"] == group]
        judged = [one for one in some if one["ok"] is not None]
        table.add_row(
            group,
            f"{len(judged)}",
            f"{sum(one['ok'] for one in judged)}",
            f"{len(some) - len(judged)}",
            *(_worst(judged, key) for key in ("worst", "largest", "off")),
            f"{judged[0]['limit']:g}" if judged else "",
        )
    show(table)
    judged = [one for one in found if one["ok"] is not None]
    wrong = [one for one in judged if not one["ok"]]
    for one in wrong:
        print(f"outside of its limit: {one['case']}{': ' + one['message'] if one.get('message') else ''}")
    reasons = dict.fromkeys(one["message"] for one in found if one["ok"] is None)
    skipped = f", {len(found) - len(judged)} skipped ({'; '.join(reasons)})" if reasons else ""
    within = f"{len(judged) - len(wrong)} of {len(judged)} cases are within their limits"
    print(f"correctness on {device}: {within}{skipped}")
    return 1 if wrong or not judged else 0


def _worst(some: Sequence[Finding], key: str) -> str:
    values = [one[key] for one in some if one.get(key) is not None]
    return f"{max(values):.1e}" if values else ""

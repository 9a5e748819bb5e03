"""Runs `zbench advise LENGTHS cluster=... model=... [framework=megatron|verl|torchtitan|none] [--json]`."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    import json
    from collections.abc import Sequence

    from zbench.advise.advice import Advice
    from zbench.advise.find import find, parts_of, question_values
    from zbench.advise.question import read_question
    from zbench.advise.told import answer_lines
    from zbench.console.meter import Meter
    from zbench.console.signals import stop_in


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(lambda: advise(sys.argv[1:]), "the answer is incomplete")


def advise(words: Sequence[str]) -> int:
    """Answers, and prints the answer; where it is stopped, prints what is finished."""
    parser = Parser(prog="zbench advise", description="Which system is fastest for your lengths, and by which flags.")
    parser.add_argument("lengths", metavar="LENGTHS", help="one length a line (.txt), or .npy, .npz, .jsonl, .parquet")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="cluster=..., model=..., framework=...")
    parser.add_argument("--json", action="store_true", help="prints values in place of words (docs/advise.md)")
    given = parser.parse_intermixed_args(list(words))
    question = read_question(given.lengths, given.settings)
    advice = Advice(question_values(question))
    seen: dict[str, None] = {}
    try:
        with Meter(parts_of(question), unit="part") as meter:

            def tell(name: str, doing: str) -> None:
                seen[name] = None
                meter.show("advise", len(seen) - 1, doing=f"{name}: {doing}")

            find(question, advice, tell)
    except (Exception, KeyboardInterrupt) as error:
        if stop_in(error) and advice.baseline is not None:  # what is finished is an answer, too
            _print(advice, given.json)
        raise
    _print(advice, given.json)
    return 0


def _print(advice: Advice, as_json: bool) -> None:
    values = advice.values()
    print(json.dumps(values, indent=1, allow_nan=False) if as_json else "\n".join(answer_lines(values)))


if __name__ == "__main__":
    sys.exit(main())

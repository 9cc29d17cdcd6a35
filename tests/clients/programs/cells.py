"""A small notebook: runs each cell that it gets (a line of JSON: source).

It answers with the value of the cell's last line.

{"value": …} (what JSON cannot say as its repr), or {"error": class, "text": message}: the
interpreter goes on, as a kernel does.
"""

import ast
import json
import sys


def run(source: str, names: dict) -> object:
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def main() -> None:
    names: dict = {}
    for line in sys.stdin:
        try:
            answer = {"value": run(json.loads(line), names)}
        except (Exception, KeyboardInterrupt) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer, default=repr), flush=True)


main()

#!/usr/bin/env python3
"""Writes the golden files of the template tests with python3-jinja2, set up as Hugging Face's transformers does:

    python3 tests/data/templates/make_golden.py            write expressions.json and families.json
    python3 tests/data/templates/make_golden.py --check    compare them with jinja2's present results; exit status 1: they differ

expressions.txt has a template on each line (U+23CE stands for a newline), all with the variables of variables.json.
src/text/templates/NAME.jinja are the templates of the families, conversations.json what is rendered with them. An output of null means
that jinja2 refuses to compile or render. strftime_now is fixed to 2025-07-10 13:44:05 UTC.
"""
import datetime, json, os, sys
import jinja2, jinja2.ext, jinja2.nodes, jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = os.path.join(HERE, "..", "..", "..", "src", "text", "templates")
NOW = datetime.datetime(2025, 7, 10, 13, 44, 5)


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text; its output is that of its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


def render(source, variables):
    """The output, or None where jinja2 refuses."""
    try:
        out = environment().from_string(source).render(**variables)
        out.encode("utf-8")
        return out
    except Exception:
        return None


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8", newline="") as f:
        return f.read()


def expressions():
    variables = json.loads(read("variables.json"))
    lines = [l.replace("\u23ce", "\n") for l in read("expressions.txt").split("\n") if l]
    return [{"template": l, "output": render(l, variables)} for l in lines]


def families():
    conversations = json.loads(read("conversations.json"))
    out = []
    for name in sorted(f[:-6] for f in os.listdir(FAMILIES) if f.endswith(".jinja")):
        with open(os.path.join(FAMILIES, name + ".jinja"), encoding="utf-8", newline="") as f:
            source = f.read()
        for case in conversations["cases"]:
            variables = {**conversations["defaults"], **case["variables"]}
            out.append({"family": name, "case": case["name"], "output": render(source, variables)})
    return out


def main():
    status = 0
    for name, make in (("expressions.json", expressions), ("families.json", families)):
        text = json.dumps(make(), ensure_ascii=False, indent=0) + "\n"
        if "--check" not in sys.argv:
            with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
                f.write(text)
        elif text != read(name):
            print(f"{name} differs from what jinja2 {jinja2.__version__} gives")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
